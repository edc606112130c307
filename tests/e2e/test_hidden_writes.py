"""Operators that write to arguments although their schemas hide it: running statistics of norms in training mode.

The statistics are buffers, plain attributes, parameters, inputs or views of these. They change from call to call as in
eager, or lowering refuses them with their name and the line of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import delegate
from delegate.errors import ExportError
from tests.support.lowering import answers, assert_same

pytestmark = pytest.mark.filterwarnings("ignore:method forward was exported in training mode")

Norm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
NORMS: dict[str, Norm] = {
    "instance_norm": lambda x, mean, var: F.instance_norm(x, mean, var, use_input_stats=True, momentum=0.3),
    "batch_norm": lambda x, mean, var: F.batch_norm(x, mean, var, training=True),
    "native_batch_norm": lambda x, m, v: torch.native_batch_norm(x, None, None, m, v, True, 0.1, 1e-5)[0],
    "implementation": lambda x, m, v: torch._batch_norm_impl_index(x, None, None, m, v, True, 0.1, 1e-5, False)[0],
    "declared": lambda x, m, v: torch.ops.aten._native_batch_norm_legit(x, None, None, m, v, True, 0.1, 1e-5)[0],
}


class Statistics(nn.Module):
    """A norm that keeps running statistics as tensors of some kind.

    Args:
        norm: the name of the norm.
        kind: what the statistics are.
        beside: if the model has control flow.
    """

    def __init__(self, norm: str, kind: str, beside: bool = False) -> None:
        super().__init__()
        self.norm, self.kind, self.beside = NORMS[norm], kind, beside
        mean, var = torch.zeros(3), torch.ones(3)
        match kind:
            case "buffers" | "unsaved buffers":
                self.register_buffer("mean", mean, persistent=kind == "buffers")
                self.register_buffer("var", var, persistent=kind == "buffers")
            case "attributes":
                self.mean, self.var = mean, var
            case "parameters":
                self.mean, self.var = (nn.Parameter(t, requires_grad=False) for t in (mean, var))
            case "views of a buffer":
                self.register_buffer("both", torch.stack([mean, var]))
            case "views of an attribute":
                self.both = torch.stack([mean, var])
            case "buffers of one memory":
                both = torch.stack([mean, var])
                self.register_buffer("mean", both[0])
                self.register_buffer("var", both[1])
            case "attributes of one memory":
                self.mean, self.var = torch.stack([mean, var])

    def forward(self, x: torch.Tensor, *inputs: torch.Tensor) -> Any:
        if self.kind.startswith("views of an"):
            mean, var = (self.both if self.kind.endswith("attribute") else inputs[0]).unbind()
        elif self.kind.startswith("views"):
            mean, var = self.both[0], self.both[1]
        else:
            mean, var = inputs if inputs else (self.mean, self.var)
        result = self.norm(x, mean, var)
        if self.beside:
            result = torch.cond(result.sum() > 100, lambda a: a - 1, lambda a: a + 1, (result,))
        return result * 2, mean + 0, var + 0


KEPT = [
    "buffers", "unsaved buffers", "attributes", "views of a buffer", "views of an attribute", "inputs",
    "views of an input",
]  # fmt: skip
EXTRA = {"inputs": (torch.zeros(3), torch.ones(3)), "views of an input": (torch.eye(2, 3),)}
CASES = [("instance_norm", kind) for kind in KEPT] + [
    (norm, kind) for norm in NORMS for kind in ("buffers", "attributes", "views of an attribute")
]


def samples() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 5) * 3 + i for i in range(3)]


def check(program: Any, model: Statistics, extra: tuple[torch.Tensor, ...] = ()) -> None:
    """Compare three calls, each with the statistics that the call before left."""
    own, others = [t.clone() for t in extra], [t.clone() for t in extra]
    for x in samples():
        for result, expected in zip(program(x, *own), model(x, *others), strict=True):
            assert_same(result, expected)
        for written, expected in zip(own, others, strict=True):
            assert_same(written, expected)


@pytest.mark.parametrize(("norm", "kind"), list(dict.fromkeys(CASES)))
def test_statistics_change_as_in_eager(norm, kind, tmp_path: Path):
    extra = EXTRA.get(kind, ())
    exported = torch.export.export(Statistics(norm, kind), (samples()[0], *extra))
    program = delegate.to_backend(exported, ())
    program.save(tmp_path / "program.dlg")
    check(program, Statistics(norm, kind), extra)
    loaded = delegate.load(tmp_path / "program.dlg")
    results = lambda *inputs: map(torch.as_tensor, loaded(*(x.numpy() for x in inputs)))  # noqa: E731
    check(results, Statistics(norm, kind), extra)


@pytest.mark.parametrize("backend", ["xnnpack", "webgpu"])
@pytest.mark.parametrize("norm", ["instance_norm", "batch_norm"])
def test_statistics_beside_partitions(norm, backend):
    exported = torch.export.export(Statistics(norm, "attributes"), (samples()[0],))
    program = delegate.to_backend(exported, backend)
    assert answers(program, backend).get("runs", 0) > 0
    check(program, Statistics(norm, "attributes"))


@pytest.mark.parametrize("kind", ["buffers", "attributes"])
@pytest.mark.parametrize("norm", ["instance_norm", "batch_norm"])
def test_statistics_beside_control_flow(norm, kind):
    exported = torch.export.export(Statistics(norm, kind, beside=True), (samples()[0],))
    check(delegate.to_backend(exported, ()), Statistics(norm, kind, beside=True))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("parameters", r"changes the parameter mean in place .*norm, at .*test_hidden_writes\.py.*register_buffer"),
        ("buffers of one memory", r"the buffer mean is written to.*mean, var; node .*test_hidden_writes\.py"),
        ("attributes of one memory", r"mean is written to.*mean, var; node .*test_hidden_writes\.py"),
    ],
)
@pytest.mark.parametrize("norm", NORMS)
def test_what_is_no_state_is_refused_with_name_and_line(norm, kind, message):
    exported = torch.export.export(Statistics(norm, kind), (samples()[0],))
    with pytest.raises(ExportError, match=message.replace("norm,", ".*")):
        delegate.to_backend(exported, ())


class Counter(nn.Module):
    """Writes in place what is no buffer, in a model with control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.count = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x)
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (self.count + 0,))


def test_attributes_are_states_beside_control_flow():
    exported, x = torch.export.export(Counter(), (torch.ones(3),)), torch.tensor([1.0, -2.0, 0.5])
    program, model = delegate.to_backend(exported, ()), Counter()
    for factor in (1, 2, -3):
        assert_same(program(x * factor), model(x * factor))
