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

# Name -> backends, function, input, the text.
CASES: dict[str, tuple[list[str], nn.Module | Callable[..., Any], torch.Tensor, str]] = {
    "partly": (["xnnpack"], logs, PARTLY, both("log", "xnnpack")),
    "everywhere": (["xnnpack"], logs, -PARTLY.abs(), both("log", "xnnpack")),
    "none": (["xnnpack"], logs, PARTLY.abs(), ""),
    "an input": (["xnnpack"], logs, torch.tensor([[1.0, NAN], [2, 3]]), both("mul", "xnnpack")),
    "removed by torch": (["xnnpack"], masked, ABOVE, own("where", "no NaN")),
    "removed by torch in part": (["xnnpack"], masked, BOTH, own("where", f"NaN too, first in {node('log')}")),
    "a state": (["xnnpack"], Counted(), PARTLY, both("sqrt", "xnnpack")),
    "portable, partly": ([], logs, PARTLY, both("log")),
    "portable, none": ([], logs, PARTLY.abs(), ""),
    "portable, removed": ([], lost, ABOVE, ""),
    "portable, sizes of data": ([], chosen, PARTLY, both("acos")),
}


def _lower(module: nn.Module | Callable[..., Any], x: torch.Tensor, **config: Any) -> delegate.CompiledProgram:
    model = module if isinstance(module, nn.Module) else Function(module)
    return delegate.to_backend(export(model.eval(), (x,)), verify=(x.clone(),), **config)


@pytest.mark.filterwarnings("ignore:method forward re")
@pytest.mark.parametrize(("backends", "module", "x", "text"), CASES.values(), ids=CASES)
def test_the_first_node(
    backends: list[str], module: nn.Module | Callable[..., Any], x: torch.Tensor, text: str
) -> None:
    program = _lower(module, x, backends=backends)
    assert {n.backend for n in program.report.nodes} == {*(backends or [PORTABLE])}
    (accuracy,) = program.report.accuracy
    assert re.fullmatch(text, accuracy.nan), accuracy.nan
    assert str(accuracy).endswith(accuracy.nan)


def test_an_error_names_the_node() -> None:
    with pytest.raises(AccuracyError, match=own("where", "no NaN")):
        _lower(masked, ABOVE, config={"backends": ["xnnpack"], "verify": {"sqnr_db": 30, "on_failure": "error"}})


def test_the_node_moves() -> None:
    program = _lower(masked, ABOVE, config={"backends": ["xnnpack"], "verify": {"sqnr_db": 30, "on_failure": "move"}})
    assert_runs(program, "xnnpack", {"aten.tril.default": 1})
    assert [a.nan for a in program.report.accuracy] == [""]
