"""Every key of the configuration in torch.compile's options: it has an effect, or is an error that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch._dynamo
from delegate_torch_compile import backend
from pydantic import BaseModel
from torch import nn

from delegate.compiled import CompiledProgram
from delegate.config import Config
from tests.support import zoo
from tests.support.sampling import every

from .compiling import compiled


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.softmax(self.body(x), -1) + 1)


class Split(nn.Module):
    """A model that torch compiles to two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.body(x))
        torch._dynamo.graph_break()
        return self.head(x)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CompiledProgram]]:
    """The programs that graphs are lowered to."""
    pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
    lowered: list[CompiledProgram] = []
    own = backend.to_backend

    def to_backend(*args: Any, **options: Any) -> CompiledProgram:
        lowered.append(own(*args, **options))
        return lowered[-1]

    monkeypatch.setattr(backend, "to_backend", to_backend)
    torch._dynamo.reset()
    with zoo.libraries():
        yield lowered


def run(config: Mapping[str, Any], module: nn.Module | None = None) -> None:
    torch.manual_seed(0)
    options = {"backends": ["xnnpack"], **config}
    with torch.no_grad():
        compiled((module or Net()).eval(), backends=None, config=options)(torch.randn(4, 64))


def places(program: CompiledProgram) -> dict[str, str]:
    return {f"{n.module} {n.op}": n.backend for n in program.report.nodes}


def in_float(program: CompiledProgram) -> int:
    """Return how many layers read a weight in float."""
    return 3 - sum("dequantize_per_channel" in n.op or "dequantize_affine" in n.op for n in program.report.nodes)


def at(place: str, backend: str) -> Callable[[CompiledProgram], bool]:
    return lambda program: places(program)[place] == backend


HEAD, DATA = "head aten.linear.default", {"scheme": "static_int8", "calibration": "data.npz"}
DYNAMIC = {"scheme": "dynamic_int8"}
Q = "quantization"
# Keys that a case is about -> the configuration, and its effect on the program or a pattern of its error.
KEYS: dict[str, tuple[dict[str, Any], Callable[[CompiledProgram], bool] | str]] = {
    "version": ({"version": 2}, "version: should be 1"),
    "backends.name": ({"backends": ["xnnpack:own"]}, at(HEAD, "xnnpack:own")),
    "backends.options": (
        {"backends": [{"name": "xnnpack", "options": {"threads": 0}}]}, r"backends\[0\].options.threads: should be"
    ),
    "backends.include": ({"backends": [{"name": "xnnpack", "include": ["aten.relu*"]}]}, at(HEAD, "portable")),
    "backends.exclude": ({"backends": [{"name": "xnnpack", "exclude": ["aten.linear*"]}]}, at(HEAD, "portable")),
    "backends.isolate backends.time_limit": (
        {"backends": [{"name": "xnnpack", "isolate": "compile", "time_limit": 1e-9}]}, at(HEAD, "portable")
    ),
    "kernels": ({"kernels": ["no such"]}, "no kernel library is named 'no such'"),
    "partitioning.min_partition_size": ({"partitioning": {"min_partition_size": 50}}, at(HEAD, "portable")),
    "partitioning.include": ({"partitioning": {"include": ["aten.relu*"]}}, at(HEAD, "portable")),
    "partitioning.exclude": ({"partitioning": {"exclude": ["aten.linear*"]}}, at(HEAD, "portable")),
    "partitioning.pins": ({"partitioning": {"pins": {"head": "portable"}}}, at(HEAD, "portable")),
    "partitioning.node_pins": ({"partitioning": {"node_pins": {"linear_2": "portable"}}}, at(HEAD, "portable")),
    "policy.unavailable": (
        {"backends": ["blocked", "xnnpack"], "policy": {"unavailable": "skip"}},
        lambda program: any("blocked" in note for note in program.report.notes),
    ),
    "policy.portable": (
        {"partitioning": {"pins": {"head": "portable"}}, "policy": {"portable": "error"}}, "stays? on portable kernels"
    ),
    "cache.enabled cache.folder cache.max_mb": (
        {"cache": {"enabled": True, "folder": "cache", "max_mb": 1}}, lambda program: any(Path("cache").rglob("*.kept"))
    ),
    "fallback.keep fallback.policy": (
        {"fallback": {"keep": True, "policy": "error"}},
        lambda program: program.program.on_fallback == "error" and len(program.program.fallbacks) == 1,
    ),
    "verify.sqnr_db verify.on_failure": ({"verify": {"sqnr_db": 500, "on_failure": "move"}}, at(HEAD, "portable")),
    "verify.max_error": ({"verify": {"sqnr_db": None, "max_error": 1e-30}}, "but a max error of 1e-30 or less"),
    "verify.relative_error": ({"verify": {"sqnr_db": None, "relative_error": 1e-30}}, "error of 1e-30 or less"),
    "verify.top1": ({"verify": {"sqnr_db": None, "top1": 1.0}}, lambda p: p.report.accuracy[0].figures.top1 == 1),
    "quantization.scheme": ({Q: DYNAMIC}, lambda p: in_float(p) == 0),
    "quantization.backend": ({Q: {**DYNAMIC, "backend": "dsp"}}, "quantization.backend: 'dsp' is not among"),
    "quantization.operators": ({Q: {**DYNAMIC, "operators": {"aten.linear*": "off"}}}, lambda p: in_float(p) == 3),
    "quantization.module_types": ({Q: {**DYNAMIC, "module_types": {"Linear": "off"}}}, lambda p: in_float(p) == 3),
    "quantization.modules": ({Q: {**DYNAMIC, "modules": {"head": "off"}}}, lambda p: in_float(p) == 1),
    "quantization.nodes": ({Q: {**DYNAMIC, "nodes": {"linear_2": "off"}}}, lambda p: in_float(p) == 1),
    "quantization.group_size": ({Q: {"scheme": "dynamic_int4", "group_size": 33}}, "quantization.group_size 33"),
    "quantization.sqnr_db quantization.budget": (
        {Q: {"scheme": "auto", "sqnr_db": 5, "budget": "1min"}, "placement": {"objective": "file size"}},
        lambda p: p.report.placements[0].chosen.startswith("xnnpack "),  # not the float model's
    ),
    "quantization.calibration": ({Q: {**DATA, "calibration": "no.npz"}}, "there is no file 'no.npz'"),
    "quantization.batches quantization.observer quantization.outliers": (
        {Q: {**DATA, "batches": 1, "observer": "minmax", "outliers": 0.01}}, lambda p: in_float(p) == 0
    ),
    "placement.policy placement.budget placement.threads placement.objective": (
        {"placement": {"policy": "measured", "budget": "5s", "threads": [1], "objective": "memory"}},
        lambda p: p.report.placements[0].objective == "memory",
    ),
    "placement.candidates.name placement.candidates.quantization "
    "placement.accuracy.sqnr_db placement.accuracy.inputs": (
        {
            "placement": {
                "policy": "measured", "budget": "20s", "objective": "file size",
                "candidates": [{"name": "xnnpack", Q: DYNAMIC}],
                "accuracy": {"sqnr_db": 20, "inputs": "data.npz"},
            }
        },
        lambda p: in_float(p) == 0,
    ),
}  # fmt: skip


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all keys of a configuration; those of a quantization inside of candidates are known."""
    for name, field in model.model_fields.items():
        inner = next(_models(field.annotation), None)
        if inner is None or (prefix == "placement.candidates." and name == Q):
            yield prefix + name
        else:
            yield from keys_of(inner, f"{prefix}{name}.")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def test_the_table_has_every_key() -> None:
    assert {key for case in KEYS for key in case.split()} == set(keys_of(Config))


@pytest.mark.filterwarnings("ignore:no operator of the model is quantized", "ignore:values are too small")
@pytest.mark.parametrize("case", every(4, KEYS))
def test_a_key(case: str, programs: list[CompiledProgram], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, effect = KEYS[case]
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32))
    if isinstance(effect, str):
        with pytest.raises(Exception, match=effect):
            run(config)
        return
    run(config)
    (program,) = programs
    assert effect(program)


def test_data_for_a_model_that_torch_splits(
    programs: list[CompiledProgram], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second graph has other inputs, whose ranges the data would not give."""
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32))
    with pytest.raises(Exception, match=r"ConfigError: quantization.calibration.*splits the model.*dynamic scheme"):
        run({Q: DATA}, Split())
    torch._dynamo.reset()
    run({Q: DYNAMIC}, Split())
    assert len(programs) == 2
