"""Operators of vendor libraries in events: they have names and times, and asking for them changes no result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from delegate.events.kinds import Event, InstructionRun, OperatorRun
from tests.support.lowering import assert_same, compiled

CALLS = 3
_ROUNDING = 1_000_000  # nanoseconds between the clocks of a library and of events


class Net(nn.Module):
    """A convolution and a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.sigmoid(self.convolution(x)).mean((2, 3)))


def image(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))


def lowered(backend: str, *, dynamic: bool = False) -> Any:
    torch.manual_seed(0)
    shapes = ({0: Dim("count", min=1, max=8)},) if dynamic else None
    return compiled(Net().eval(), (image(2),), backends=[backend], dynamic_shapes=shapes)


def assert_operators(backend: str, *words: str, dynamic: bool = False) -> list[OperatorRun]:
    """Assert that each call of a partition reports the library's operators; return all of them.

    Args:
        backend: that runs the whole model.
        words: parts of the names of operators.
        dynamic: True for calls of several sizes.
    """
    program = lowered(backend, dynamic=dynamic)
    inputs = [image(2 + dynamic * n) for n in range(CALLS)]
    wanted, events = [program(x) for x in inputs], list[Event]()
    with program.listen(events.append, inner=True):
        results = [program(x) for x in inputs]
    for result, want in zip(results, wanted, strict=True):
        assert_same(result, want)
    runs = [e for e in events if isinstance(e, InstructionRun)]
    operators = [e for e in events if isinstance(e, OperatorRun)]
    assert len(runs) == CALLS
    assert {(e.backend, e.partition) for e in operators} == {(backend, f"{backend}_0")}
    assert set(Counter((e.name, e.what) for e in operators).values()) == {CALLS}
    assert all(any(word in e.what for e in operators) for word in words), {e.what for e in operators}
    first, last = runs[0].start - _ROUNDING, runs[-1].start + runs[-1].duration + _ROUNDING
    assert all(first <= e.start <= e.start + e.duration <= last for e in operators)
    assert 0 < sum(e.duration for e in operators) <= sum(r.duration for r in runs) + _ROUNDING
    events.clear()
    with program.listen(events.append):
        assert_same(program(inputs[0]), wanted[0])
    assert not any(isinstance(e, OperatorRun) for e in events)
    return operators


def assert_table(backend: str) -> None:
    """Assert that a profile has the operators of the library below their partition, in both of two nested profiles."""
    program = lowered(backend)
    with program.profile(inner=True) as outer:
        program(image(2))
        with program.profile(inner=True) as inner:
            program(image(2))
        program(image(2))
    for profile, calls in ((outer, 3), (inner, 1)):
        (timing,) = profile.timings
        operators = profile.operators_of(timing)
        assert {t.count for t in operators} == {calls}
        lines = str(profile.table()).splitlines()
        assert len(lines) == 2 + len(operators)
        assert all(t.what in "\n".join(lines[2:]) for t in operators)
    with program.profile() as profile:
        program(image(2))
    assert profile.operators_of(profile.timings[0]) == ()
