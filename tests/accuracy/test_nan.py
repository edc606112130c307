"""The first node that gives NaN, in a program and in its reference."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import export

import delegate
from delegate.errors import AccuracyError
from delegate.plugins import PORTABLE
from tests.support.functions import Function
from tests.support.lowering import assert_runs

NAN = torch.nan


def node(op: str) -> str:
    """Return the pattern of a node in a message."""
    return rf"aten\.{op}\.\w+ \({op}\w*\) at \S+\.py:\d+, in \w+"


def both(op: str, where: str = "") -> str:
    """Return the pattern of NaN that a node gives in the program and in the reference."""
    place = f"{node(op)}, in partition xnnpack_0 on xnnpack, as in torch" if where else node(op)
    return f"NaN is first in {place}; the reference returns NaN too, first in {node(op)}"


def own(op: str, reference: str) -> str:
    """Return the pattern of NaN that only a node of XNNPACK gives."""
    place = f"{node(op)}, in partition xnnpack_0 on xnnpack, where torch returns none"
    return f"NaN is first in {place}; the reference returns {reference}"


def logs(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).log() + 1


def masked(x: torch.Tensor) -> torch.Tensor:
    return torch.tril((x * 2).log() + 1) * 3 + 1


def chosen(x: torch.Tensor) -> torch.Tensor:
    return x[x > 2].acos() + 1


def lost(x: torch.Tensor) -> torch.Tensor:
    return torch.tril((x * 2).log()) + 1


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x)
        return self.count.sqrt() + 1


PARTLY = torch.tensor([[1.0, 2], [-3, 4]])
ABOVE = torch.tensor([[1.0, -2], [3, 4]])  # negative only where a lower triangle has nothing
BOTH = torch.tensor([[1.0, -2], [-3, 4]])

CASES: dict[str, tuple[nn.Module | Callable[..., Any], torch.Tensor, str]] = {
    "partly": (logs, PARTLY, both("log", "xnnpack")),
    "everywhere": (logs, -PARTLY.abs(), both("log", "xnnpack")),
    "none": (logs, PARTLY.abs(), ""),
    "an input": (logs, torch.tensor([[1.0, NAN], [2, 3]]), both("mul", "xnnpack")),
    "removed by torch": (masked, ABOVE, own("where", "no NaN")),
    "removed by torch in part": (masked, BOTH, own("where", f"NaN too, first in {node('log')}")),
    "a state": (Counted(), PARTLY, both("sqrt", "xnnpack")),
}

PORTABLES: dict[str, tuple[nn.Module | Callable[..., Any], torch.Tensor, str]] = {
    "partly": (logs, PARTLY, both("log")),
    "none": (logs, PARTLY.abs(), ""),
    "removed": (lost, ABOVE, ""),
    "sizes of data": (chosen, PARTLY, both("acos")),
}


def _lower(module: nn.Module | Callable[..., Any], x: torch.Tensor, **config: Any) -> delegate.CompiledProgram:
    model = module if isinstance(module, nn.Module) else Function(module)
    return delegate.to_backend(export(model.eval(), (x,)), verify=(x.clone(),), **config)


@pytest.mark.filterwarnings("ignore:method forward re")
@pytest.mark.parametrize(("module", "x", "text"), CASES.values(), ids=CASES)
def test_xnnpack(module: nn.Module | Callable[..., Any], x: torch.Tensor, text: str) -> None:
    program = _lower(module, x, backends="xnnpack")
    assert_runs(program, "xnnpack")
    (accuracy,) = program.report.accuracy
    assert re.fullmatch(text, accuracy.nan), accuracy.nan
    assert str(accuracy).endswith(accuracy.nan)


@pytest.mark.filterwarnings("ignore:method forward re")
@pytest.mark.parametrize(("module", "x", "text"), PORTABLES.values(), ids=PORTABLES)
def test_portable(module: nn.Module | Callable[..., Any], x: torch.Tensor, text: str) -> None:
    program = _lower(module, x, backends=[])
    assert {n.backend for n in program.report.nodes} == {PORTABLE}
    (accuracy,) = program.report.accuracy
    assert re.fullmatch(text, accuracy.nan), accuracy.nan


def test_an_error_names_the_node() -> None:
    with pytest.raises(AccuracyError, match=own("where", "no NaN")):
        _lower(masked, ABOVE, config={"backends": ["xnnpack"], "verify": {"sqnr_db": 30, "on_failure": "error"}})


def test_the_node_moves() -> None:
    program = _lower(masked, ABOVE, config={"backends": ["xnnpack"], "verify": {"sqnr_db": 30, "on_failure": "move"}})
    assert_runs(program, "xnnpack", {"aten.tril.default": 1})
    assert [a.nan for a in program.report.accuracy] == [""]
