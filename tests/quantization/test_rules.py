"""Rules for layers: only layers that are off are computed in floats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.config.model import Quantization
from delegate.errors import ConfigError, InputError
from tests.support import zoo
from tests.support.lowering import assert_runs, assert_same, relative_error
from tests.support.quantized import settings_of
from tests.support.sampling import every

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    from delegate.quantization import OFF, convert, float_node, keep_in_float, prepare, quantize


class Block(nn.Module):
    """A module with layers, and with one weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.weight = nn.Linear(16, 16), nn.Linear(16, 16), nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.linear(self.up(x), self.weight).relu()) + x


class Net(nn.Module):
    """Two blocks, of which the first and its first layer are called again, and layers without modules."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(16, 4)
        self.scale, self.last = nn.Parameter(torch.rand(4, 1)), nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        x = self.blocks[0](self.blocks[0].up(x))
        return nn.functional.linear(self.head(x), self.last * self.scale) * 2


LAYERS = {  # of the float program: what it is
    "linear": "blocks.0.up", "linear_1": "blocks.0", "linear_2": "blocks.0.down",
    "linear_3": "blocks.1.up", "linear_4": "blocks.1", "linear_5": "blocks.1.down",
    "linear_6": "blocks.0.up", "linear_7": "blocks.0.up", "linear_8": "blocks.0", "linear_9": "blocks.0.down",
    "linear_10": "head", "linear_11": "",
}  # fmt: skip
# Modules, nodes -> the layers that stay in floats.
CASES: Mapping[str, tuple[dict[str, list[str]], list[str]]] = {
    "nothing": ({}, []),
    "a nested path": ({"modules": ["blocks.1.down"]}, ["linear_5"]),
    "a path that is called three times": ({"modules": ["blocks.0.up"]}, ["linear", "linear_6", "linear_7"]),
    "one of its calls": ({"nodes": ["linear_6"]}, ["linear_6"]),
    "a call in a module": ({"nodes": ["linear_4"]}, ["linear_4"]),
    "one outside of modules": ({"nodes": ["linear_11"]}, ["linear_11"]),
    "all within a path": ({"modules": ["blocks.1"]}, ["linear_3", "linear_4", "linear_5"]),
    "also what is called from outside": (
        {"modules": ["blocks.0"]},
        ["linear", "linear_1", "linear_2", "linear_6", "linear_7", "linear_8", "linear_9"],
    ),
    "several": ({"modules": ["head"], "nodes": ["linear_2", "linear_8"]}, ["linear_2", "linear_8", "linear_10"]),
}


def _floats(program: torch.export.ExportedProgram) -> list[str]:
    """Return the linear layers that read no decoded weight, by their names in the float program."""
    layers = [n for n in program.graph.nodes if str(n.target) == "aten.linear.default"]
    return [float_node(n) for n in layers if "dequantize" not in str(n.args[1].target)]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *every(3, ((name, "static_int8") for name in CASES)),
        ("several", "dynamic_int8"),
        ("several", "weight_only_int8"),
    ],
)
def test_exactly_these_layers_stay_in_floats(name: str, scheme: str) -> None:
    off, expected = CASES[name]
    torch.manual_seed(0)
    module, batches = Net().eval(), [(torch.randn(4, 16),) for _ in range(3)]
    exported = torch.export.export(module, batches[0])
    float_layers = {
        n.name: list(n.meta["nn_module_stack"].values())[-1][0] for n in exported.graph.nodes if "linear" in n.name
    }
    assert float_layers == LAYERS
    program = quantize(exported, keep_in_float(settings_of("xnnpack", scheme), **off), batches)
    assert _floats(program) == expected
    compiled = delegate.to_backend(program, "xnnpack")
    assert_runs(compiled, "xnnpack")
    reference = program.module()(*batches[0]).detach()
    assert_same(compiled(*batches[0]), reference, 0.05)  # 2e-2 is measured: some steps of 8 bits


def test_names_of_float_nodes_where_others_vanish() -> None:
    """Fold a product of the weight, so that the nodes of the quantized program have other numbers."""
    exported = torch.export.export(Net().eval(), (torch.randn(4, 16),))
    program = quantize(exported, settings_of("xnnpack"), [(torch.randn(4, 16),) for _ in range(2)])
    (product,) = (n for n in program.graph.nodes if str(n.target) == "aten.mul.Tensor")
    assert (product.name, float_node(product)) == ("mul", "mul_1")


def test_layers_in_float_win_over_other_rules() -> None:
    rules = {"modules": {"a.b": "static_int8", "a.*": "dynamic_int8"}, "nodes": {"linear": "static_int8"}}
    changed = keep_in_float(Quantization(**rules), modules=["a.b"], nodes=["linear", "add"])
    assert list(changed.modules.items()) == [("a.*", "dynamic_int8"), ("a.b", OFF)]
    assert changed.nodes == {"linear": OFF, "add": OFF}
    assert keep_in_float(Quantization(), modules=["a[0]"]).modules == {"a[[]0]": OFF}


class Convolutions(nn.Module):
    """A convolution with a norm and an activation, each with its own path."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x))).mean((2, 3))


def _around(program: torch.export.ExportedProgram, target: str) -> tuple[bool, bool]:
    """Return if an operator reads decoded activations, and if its result becomes integers at once."""
    (node,) = (n for n in program.graph.nodes if str(n.target) == target)
    return "dequantize" in str(node.args[0].target), any("quantize_per" in str(u.target) for u in node.users)


# Rules -> if the convolution and the activation read decoded activations, and if their results become integers.
FUSED: Mapping[str, tuple[dict[str, Any], tuple[bool, bool], tuple[bool, bool]]] = {
    "none": ({}, (True, False), (False, True)),
    "norm": ({"modules": {"norm": OFF}}, (True, False), (False, True)),
    "act": ({"modules": {"act": OFF}}, (True, True), (True, True)),  # the mean takes integers
    "act and mean": ({"modules": {"act": OFF}, "operators": {"aten.mean*": OFF}}, (True, True), (True, False)),
    "conv": ({"modules": {"conv": OFF}}, (False, True), (True, True)),
}


@pytest.mark.parametrize(
    ("name", "qat"),
    [
        *((name, False) for name in FUSED),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in FUSED),  # torchao takes 8 s for each
    ],
)
def test_a_rule_for_what_would_be_fused(name: str, qat: bool) -> None:
    """Check that an activation that is off is not fused, that a norm is, and that both patterns match."""
    rules, conv, act = FUSED[name]
    if name == "conv" and qat:
        conv = (False, False)  # in training the norm stays
    torch.manual_seed(0)
    module, x = Convolutions().train(qat), torch.randn(2, 3, 8, 8)
    prepared = prepare(torch.export.export(module, (x,)), settings_of("xnnpack", **rules), qat=qat)
    for _ in range(3):
        prepared.module(torch.randn(2, 3, 8, 8))
    program = convert(prepared)
    assert (_around(program, "aten.conv2d.default"), _around(program, "aten.relu.default")) == (conv, act)


class Head(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.only, self.size = nn.Linear(size, 4), size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.only(x).relu()


@pytest.fixture
def methods(tmp_path: Path) -> dict[str, torch.export.ExportedProgram]:
    """Return methods with different inputs, each with a file of calibration data."""
    torch.manual_seed(0)
    for name, size in (("a", 8), ("b", 16)):
        np.savez(tmp_path / f"{name}.npz", np.random.default_rng(0).standard_normal((3, size)).astype(np.float32))
    modules = {"a": Head(8).eval(), "b": nn.Sequential(Head(16), nn.Linear(4, 2)).eval()}
    return {name: torch.export.export(m, (torch.randn(3, 8 if name == "a" else 16),)) for name, m in modules.items()}


def _configuration(calibration: Any, **rules: Any) -> dict[str, Any]:
    return {"backends": ["xnnpack"], "quantization": {"scheme": "static_int8", "calibration": calibration, **rules}}


@pytest.mark.extended
def test_each_method_has_calibration_data(methods: dict[str, torch.export.ExportedProgram], tmp_path: Path) -> None:
    calibration = {name: str(tmp_path / f"{name}.npz") for name in methods}
    # A rule need not match in every method.
    program = delegate.to_backend(methods, config=_configuration(calibration, modules={"1": OFF}))
    assert_runs(program, "xnnpack")
    for name, exported in methods.items():
        x = torch.from_numpy(np.load(tmp_path / f"{name}.npz")["arr_0"])
        with torch.no_grad():
            reference = exported.module()(x)
        error = relative_error(program.method(name)(x), reference)
        weights = [n for n in program.report.nodes if n.method == name and "dequantize_per_channel" in n.op]
        assert 0 < error < 7e-3  # 1.9e-3 is measured: some steps of 8 bits
        assert len(weights) == 1  # of two layers in the second


@pytest.mark.parametrize(
    ("calibration", "error", "words"),
    [
        ("a.npz", ConfigError, r"one source of calibration data.*2.*\{a: DATA"),
        ({"a": "a.npz", "c": "b.npz"}, ConfigError, "no method 'c'"),
        ({"a": "a.npz"}, ConfigError, "'b' has no calibration data"),
        ({"a": "b.npz", "b": "a.npz"}, InputError, r"\[3, 16\]"),
    ],
)
def test_calibration_that_does_not_fit_the_methods(
    calibration: Any,
    error: type[Exception],
    words: str,
    methods: dict[str, torch.export.ExportedProgram],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        delegate.to_backend(methods, config=_configuration(calibration))
