"""A compiled program keeps nothing of the model that it was lowered from."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx.experimental import proxy_tensor

import delegate
from delegate.errors import ConfigError

X = torch.linspace(-2, 2, 64).reshape(2, 32)
Options = dict[str, Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.register_buffer("calls", torch.zeros(1))
        self.table = torch.rand(32)  # a constant of the program

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.tanh(self.linear(x)) * self.table + self.calls


class Branches(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.linear, lambda v: v * self.table, (x,))


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))


def export(module: nn.Module, **options: Any) -> ExportedProgram:
    """Export a module, and clear what torch itself keeps of the last export."""
    exported = torch.export.export(module.eval(), (X,), **options)
    proxy_tensor._FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT.clear()
    torch._dynamo.reset()
    return exported


def two_methods() -> dict[str, ExportedProgram]:
    shared = nn.Linear(32, 32)
    return {name: export(nn.Sequential(shared, last)) for name, last in (("a", nn.Tanh()), ("b", nn.ReLU()))}


def quantized(**section: Any) -> Options:
    return {"config": {"backends": ["xnnpack"], "quantization": section}}


MODELS: dict[str, Callable[[], Any]] = {
    "states and constants": lambda: export(Net()),
    "control flow": lambda: export(Branches()),
    "dynamic sizes": lambda: export(layers(), dynamic_shapes=({0: torch.export.Dim("n")},)),
    "two methods": two_methods,
}
VERIFIED = {"verify": {"sqnr_db": 40, "on_failure": "move"}}
REQUESTS: dict[str, Options] = {
    "portable": {"backends": []},
    "xnnpack": {"backends": "xnnpack"},
    "all backends": {"placement": delegate.ByPreference()},  # estimates may prefer kernels for so small a model
    "verified": {"backends": "xnnpack", "verify": delegate.Verify((X,), sqnr_db=40)},
    "dynamic int8": quantized(scheme="dynamic_int8"),
    "static int8": quantized(scheme="static_int8", calibration="x.npz"),
    "layers kept in float": {"config": quantized(scheme="dynamic_int8")["config"] | VERIFIED},
    "measured": {"backends": "xnnpack", "placement": delegate.Measured(budget=1)},
    "measured schemes": quantized(scheme="auto", sqnr_db=20, budget=2),
    "isolated": {"config": {"backends": [{"name": "xnnpack", "isolate": "compile"}]}},
}


def parts_of(model: Any) -> list[weakref.ref[Any]]:
    """Return weak references of exported programs, and of their weights, buffers and constants."""
    programs = list(model.values()) if isinstance(model, dict) else [model]
    tensors = [t for ep in programs for t in (*ep.state_dict.values(), *ep.constants.values())]
    return [weakref.ref(part) for part in (*programs, *(t for t in tensors if isinstance(t, torch.Tensor)))]


def survivors(parts: list[weakref.ref[Any]]) -> list[str]:
    gc.collect()
    return [str(type(part)) for reference in parts if (part := reference()) is not None]


def lower(model: Any, options: Options, file: Path) -> delegate.CompiledProgram:
    """Return a program that was called and saved, and whose report was read."""
    program = delegate.to_backend(model, **({"cache": False} | options))
    for name in program.methods:
        program.method(name)(X)
    assert bool(program.report.partitions) == (options != REQUESTS["portable"])
    program.report.to_json()
    program.save(file)
    return program


CACHED: Options = {"backends": "xnnpack", "cache": True}
# Name -> the model, the request, the number of lowerings.
CASES: dict[str, tuple[Callable[[], Any], Options, int]] = {
    **{name: (lambda: export(layers()), options, 1) for name, options in REQUESTS.items()},
    **{name: (build, REQUESTS["xnnpack"], 1) for name, build in MODELS.items()},
    "stored in the cache": (lambda: export(layers()), CACHED, 1),
    "from the cache": (lambda: export(layers()), CACHED, 2),
}


@pytest.mark.parametrize(("build", "options", "count"), CASES.values(), ids=CASES)
def test_no_program_keeps_its_model(
    build: Callable[[], Any], options: Options, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path / "cache"))
    np.savez("x.npz", input=X.numpy())
    torch.manual_seed(0)
    model = build()
    parts = parts_of(model)
    for _ in range(count):
        program = lower(model, options, tmp_path / "model.dlg")
    del model
    assert survivors(parts) == []
    assert program.plan


def test_the_float_reference_is_not_kept() -> None:
    module = layers()
    model, reference = export(module), export(module)
    part = weakref.ref(reference)  # its weights are the model's
    program = delegate.to_backend(model, "xnnpack", verify=delegate.Verify((X,), reference=reference))
    del reference
    assert survivors([part]) == []
    assert program.plan


def test_a_program_without_the_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    model = export(layers())
    program = delegate.to_backend(model, "xnnpack")
    monkeypatch.setattr("delegate.plugins.find_plugins", dict)
    with pytest.raises(ConfigError, match=r"delegate-devtools, which is not installed.*pip install ./plugins/devtools"):
        program.debug(model)
