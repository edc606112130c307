"""The layers that a message names: those that compute, and that the lines to paste keep in float."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.export import ExportedProgram, export

import delegate
from delegate.errors import AccuracyError
from tests.support import zoo
from tests.support.sampling import every

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")

pytestmark = pytest.mark.filterwarnings(
    "ignore:no operator of the model is quantized", "ignore:The tensor attributes self.lstm"
)

# Operators that move data, as export names them: no rule keeps their values in float.
MOVES = (
    "view", "reshape", "flatten", "permute", "transpose", "slice", "select", "chunk", "split", "cat", "concat",
    "unsqueeze", "squeeze", "expand", "max_pool2d", "pixel_shuffle", "pad", "getitem", "flip",
)  # fmt: skip


class Moving(nn.Module):
    """Convolutions among operators that move data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.MaxPool2d(2)
        self.second, self.head = nn.Conv2d(8, 16, 3), nn.Linear(16 * 9, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.first(x))))
        x = nn.functional.pad(torch.relu(self.second(x)), (0, 1, 0, 1))
        left, right = x.chunk(2, 1)
        x = torch.cat([right, left], 1).permute(0, 2, 3, 1)[:, :3, :3]
        return self.head(x.flatten(1))


class Attention(nn.Module):
    """A block of a transformer; softmax, norms and GELU stay in float on XNNPACK anyway."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(((q @ k.mT * 0.3).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Linear(8, 16), nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(torch.tanh(self.embed(x)))[0][:, -1])


class Shared(nn.Module):
    """A layer that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.relu(self.body(x)) + x.flip(1)
        return self.head(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "moving": (Moving, (4, 3, 16, 16)),
    "attention": (Attention, (2, 6, 32)),
    "recurrent": (Recurrent, (3, 5, 8)),
    "shared": (Shared, (4, 16)),
}


def inputs(name: str) -> torch.Tensor:
    return torch.randn(MODELS[name][1], generator=torch.Generator().manual_seed(0))


def moving() -> list[torch.Tensor]:
    return [inputs("moving")]


def attention() -> list[torch.Tensor]:
    return [inputs("attention")]


def recurrent() -> list[torch.Tensor]:
    return [inputs("recurrent")]


def shared() -> list[torch.Tensor]:
    return [inputs("shared")]


def exported(name: str) -> ExportedProgram:
    torch.manual_seed(1)
    with zoo.libraries():
        return export(MODELS[name][0]().eval(), (inputs(name),))


def pasted(error: AccuracyError) -> dict[str, Any]:
    """Return the rules of the lines to paste."""
    lines = error.remedy.partition("quantization:\n")[2].partition("\nor set")[0]
    rules: dict[str, Any] = yaml.safe_load("quantization:\n" + lines)["quantization"]["nodes"]
    return rules


def require_no_move(text: str) -> None:
    assert not [op for op in MOVES if f"aten.{op}." in text]


@pytest.mark.parametrize(
    ("name", "backend", "scheme"),
    [
        *every(3, ((name, "xnnpack", "static_int8") for name in MODELS)),
        pytest.param("moving", "dsp", "static_int8", marks=pytest.mark.slow),
        ("shared", "xnnpack", "dynamic_int8"),
        pytest.param("shared", "xnnpack", "weight_only_int8", marks=pytest.mark.slow),
    ],
)
def test_pasted_lines_keep_layers_in_float_until_the_bound_holds(name: str, backend: str, scheme: str) -> None:
    ep, bound = exported(name), 50.0
    data = {"calibration": f"{__name__}:{name}"} if scheme.startswith("static") else {}
    nodes: dict[str, Any] = {}
    section = {"scheme": scheme, **data}
    names = {n.name for n in ep.graph.nodes if n.op == "call_function"}
    for _ in range(6):
        config = {"backends": [backend], "quantization": {**section, "nodes": nodes}, "verify": {"sqnr_db": bound}}
        try:
            program = delegate.to_backend(ep, config=config)
        except AccuracyError as error:
            require_no_move(str(error))
            rules = pasted(error)
            assert rules.keys() <= names
            assert rules.keys() - nodes.keys(), "the same lines again"
            nodes |= rules
        else:
            break
    assert nodes
    assert program.report.accuracy[0].reference == "the float reference"
    assert program.report.accuracy[0].figures.sqnr_db >= bound
    expected = ep.module()(inputs(name)).detach()
    noise = (program(inputs(name)) - expected).square().sum()
    assert 10 * torch.log10(expected.square().sum() / noise) >= bound - 0.1


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:no operator of method")  # since the rules keep its layers in float
def test_lines_of_several_methods_name_each_node_once() -> None:
    """Methods may have nodes of the same name, and YAML has no key twice."""
    methods = {"one": exported("shared"), "two": exported("shared")}
    data = dict.fromkeys(methods, f"{__name__}:shared")
    section: dict[str, Any] = {"scheme": "static_int8", "calibration": data}
    verify = {name: inputs("shared") for name in methods}
    config = {"backends": ["xnnpack"], "quantization": section, "verify": {"sqnr_db": 60}}
    with pytest.raises(
        AccuracyError, match=r"aten.linear.default in method one, .*aten.\w+.\w+ in method two"
    ) as caught:
        delegate.to_backend(methods, config=config, verify=verify)
    lines = caught.value.remedy.partition("\n")[2].partition("\nor set")[0]
    rules = yaml.safe_load(lines)["quantization"]["nodes"]
    assert len(rules) == lines.count(": off")
    section["nodes"] = rules
    program = delegate.to_backend(methods, config=config, verify=verify)
    assert all(a.figures.sqnr_db >= 60 for a in program.report.accuracy)
