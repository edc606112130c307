"""The configuration in torch.compile's options: each key has an effect, or is an error that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn
from torch.utils.checkpoint import checkpoint

from delegate.compiled import CompiledProgram
from delegate.testing import assert_same
from tests.support import zoo
from tests.support.quantized import sqnr

from .compiling import Lowered, compile_on

T = torch.Tensor


@pytest.fixture(autouse=True)
def _libraries() -> Iterator[None]:
    pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
    with zoo.libraries():
        yield


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()


def compile_with(module: nn.Module, **config: Any) -> Any:
    return compile_on(module, backends=None, config={"backends": ["xnnpack"], **config})


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["dynamic_int8", "static_int8"])
def test_graphs_are_quantized(scheme: str, tmp_path: Path) -> None:
    """Check errors of int8 size, at every batch size and after any number of changes of the weights."""
    np.savez(tmp_path / "data.npz", np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    torch._dynamo.reset()
    module, data = net(), {"calibration": str(tmp_path / "data.npz")} if scheme == "static_int8" else {}
    run = compile_with(module, quantization={"scheme": scheme, **data})
    with torch.no_grad():
        for batch in (64,) if data else (4, 6, 3):
            x = torch.randn(batch, 64)
            assert 26 < sqnr(module(x), run(x)) < 60
        for _ in range(5):
            module[0].weight.mul_(1.05)
            assert 26 < sqnr(module(x), run(x)) < 60


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantization", {"scheme": "dynamic_int8"}),
        ("verify", {"sqnr_db": 20}),
        ("placement", {"policy": "measured"}),
    ],
)
def test_keys_that_graphs_of_gradients_cannot_have(key: str, value: Any) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match=f"ConfigError: {key}.*without gradients.*no_grad"):
        compile_with(net(), **{key: value})(torch.randn(4, 64))


def test_weights_that_are_inputs_are_not_quantized() -> None:
    torch._dynamo.reset()
    config = {"backends": ["xnnpack"], "quantization": {"scheme": "dynamic_int8"}}
    run = compile_on(net(), backends=None, config=config, freeze=False)
    with torch.no_grad(), pytest.raises(Exception, match=r'ConfigError: quantization.*"freeze"'):
        run(torch.randn(4, 64))


class Split(nn.Module):
    """A model that torch compiles to two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: T) -> T:
        x = torch.relu(self.body(x))
        torch._dynamo.graph_break()
        return self.head(x)


def test_calibration_data_for_a_model_that_torch_splits(tmp_path: Path, lowered: Lowered) -> None:
    """The second graph has other inputs, whose ranges the data would not give."""
    np.savez(tmp_path / "data.npz", np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32))
    section, x = {"scheme": "static_int8", "calibration": str(tmp_path / "data.npz")}, torch.randn(4, 64)
    with torch.no_grad():
        with pytest.raises(Exception, match=r"ConfigError: quantization.calibration.*splits the model.*dynamic scheme"):
            compile_with(Split().eval(), quantization=section)(x)
        torch._dynamo.reset()
        compile_with(Split().eval(), quantization={"scheme": "dynamic_int8"})(x)
    assert len(lowered) == 2


# Sections of the configuration that act on a graph as on any program, and what they do to it.
SECTIONS: dict[str, tuple[dict[str, Any], Callable[[CompiledProgram], bool] | str]] = {
    "options of a backend": (
        {"backends": [{"name": "xnnpack", "options": {"threads": 0}}]}, r"backends\[0\].options.threads: should be"
    ),
    "policy": ({"partitioning": {"pins": {"2": "portable"}}, "policy": {"portable": "error"}}, "on portable kernels"),
    "cache": ({"cache": {"enabled": True, "folder": "cache"}}, lambda _: any(Path("cache").rglob("*.kept"))),
    "fallback": ({"fallback": {"keep": True}}, lambda program: len(program.program.fallbacks) == 1),
    "verify": (
        {"verify": {"sqnr_db": 500, "on_failure": "move"}},
        lambda program: any(node.backend == "portable" for node in program.report.nodes),
    ),
    "placement": (
        {"placement": {"policy": "measured", "budget": "5s", "objective": "memory"}},
        lambda program: program.report.placements[0].objective == "memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SECTIONS)
def test_sections(name: str, lowered: Lowered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, effect = SECTIONS[name]
    with torch.no_grad(), pytest.raises(Exception, match=effect) if isinstance(effect, str) else nullcontext():
        compile_with(net(), **config)(torch.randn(4, 64))
    assert isinstance(effect, str) or effect(lowered[0])


class Dropping(nn.Module):
    """A block with dropout that is recomputed for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x: T) -> T:
        return checkpoint(lambda y: self.drop(self.layer(y)).relu(), x, use_reentrant=False).sum()


def test_checkpoints_with_random_numbers_run_by_torch(lowered: Lowered) -> None:
    torch.manual_seed(0)
    module, x, messages = Dropping().train(), torch.randn(16, 8), []
    for run in (torch.compile(module, backend="aot_eager"), compile_on(module)):
        torch._dynamo.reset()
        torch.manual_seed(1)
        module.zero_grad()
        expected = pytest.warns(RuntimeWarning, match=r"torch runs a graph.*run_\w+_rng_state")
        with expected if messages else nullcontext():  # of both graphs, forward and backward
            loss = run(x)
            loss.backward()
        messages.append((loss.detach(), module.layer.weight.grad))
    assert_same(messages[1], messages[0], tolerance=0)
    assert lowered.backends == set()
