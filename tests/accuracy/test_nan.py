"""NaN in the results of a program, of its reference, or of both."""

from __future__ import annotations

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

BOTH_HAVE = "the program and the reference return NaN"
ONLY_HERE = "the program returns NaN, and the reference returns none"


def logs(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).log() + 1


def masked(x: torch.Tensor) -> torch.Tensor:
    return torch.tril((x * 2).log() + 1) * 3 + 1


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
# Name -> backends, function, input, the text.
CASES: dict[str, tuple[list[str], nn.Module | Callable[..., Any], torch.Tensor, str]] = {
    "partly": (["xnnpack"], logs, PARTLY, BOTH_HAVE),
    "everywhere": (["xnnpack"], logs, -PARTLY.abs(), BOTH_HAVE),
    "none": (["xnnpack"], logs, PARTLY.abs(), ""),
    "removed by torch": (["xnnpack"], masked, ABOVE, ONLY_HERE),
    "a state": (["xnnpack"], Counted(), PARTLY, BOTH_HAVE),
    "portable, partly": ([], logs, PARTLY, BOTH_HAVE),
    "portable, removed": ([], lost, ABOVE, ""),
}


def _lower(module: nn.Module | Callable[..., Any], x: torch.Tensor, **config: Any) -> delegate.CompiledProgram:
    model = module if isinstance(module, nn.Module) else Function(module)
    return delegate.to_backend(export(model.eval(), (x,)), verify=(x.clone(),), **config)


@pytest.mark.filterwarnings("ignore:method forward re")
@pytest.mark.parametrize(("backends", "module", "x", "text"), CASES.values(), ids=CASES)
def test_which_side_returns_nan(
    backends: list[str], module: nn.Module | Callable[..., Any], x: torch.Tensor, text: str
) -> None:
    program = _lower(module, x, backends=backends)
    assert {n.backend for n in program.report.nodes} == {*(backends or [PORTABLE])}
    (accuracy,) = program.report.accuracy
    assert accuracy.nan.partition(" (")[0] == text
    assert str(accuracy).endswith(accuracy.nan)


def test_nan_is_in_the_error() -> None:
    with pytest.raises(AccuracyError, match=f"{ONLY_HERE} .*delegate debug MODEL --nan"):
        _lower(masked, ABOVE, config={"backends": ["xnnpack"], "verify": {"sqnr_db": 30, "on_failure": "error"}})


def test_the_node_moves() -> None:
    program = _lower(masked, ABOVE, config={"backends": ["xnnpack"], "verify": {"sqnr_db": 30, "on_failure": "move"}})
    assert_runs(program, "xnnpack", {"aten.tril.default": 1})
    assert [a.nan for a in program.report.accuracy] == [""]
