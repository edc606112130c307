"""Delegates that report their library's operators: their life, and what a plugin may do wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import delegate
from delegate.backend.aot import Backend, PreprocessResult
from delegate.errors import BackendFailed, ListenerError
from delegate.events.kinds import Event, InstructionRun, OperatorRun
from delegate.program.file import serialize
from delegate.runtime.backend import Delegate
from delegate.verdict import YES, Reason, no
from tests.support.faulty import MODULE, Runtime, Sum, registry  # noqa: F401 - a fixture among them

X = np.ones((2, 3), np.float32)


class Adder(Backend):
    name = "faulty"

    def check(self, node):
        return YES if str(node.target) == "aten.add.Tensor" else no(Reason.OPERATOR, "it only adds")

    def preprocess(self, region):
        return PreprocessResult(b"sum")


class Profiled(Sum):
    def __init__(self, report: Callable[[str, str, int, int], Any], log: list[str]) -> None:
        self.report, self.log = report, log

    def prepare(self, inputs, outputs):
        self.log.append("prepare")

    def execute(self, inputs, outputs):
        super().execute(inputs, outputs)
        self.report("", "Add", 5, 7)

    def close(self):
        self.report("end", "Add", 6, 8)
        self.log.append("close")


def loaded(profiled: Callable[..., Any], *, keep: bool = False) -> Any:
    """The sum of two arrays on a backend whose delegates have this `profiled`."""
    made = type("Reporting", (Sum,), {"profiled": lambda self, report: profiled(report)})
    MODULE.Aot, MODULE.Runtime = Adder, type("Made", (Runtime,), {"init": lambda self, blob, specs: made()})
    module = type("Net", (torch.nn.Module,), {"forward": lambda self, a, b: a + b})()
    exported = torch.export.export(module, (torch.ones(2, 3), torch.ones(2, 3)))
    config = {"backends": ["faulty"], "fallback": {"keep": keep, "policy": "allow"}}
    return delegate.load(serialize(delegate.to_backend(exported, config=config).program))


@pytest.mark.parametrize("keep", [False, True])
def test_the_life_of_a_profiled_delegate(keep):
    log, events = list[str](), list[Event]()
    program = loaded(lambda report: Profiled(report, log), keep=keep)
    with program.listen(events.append, inner=True):
        assert np.array_equal(program(X, X), X + X)
        assert log == ["prepare"]
    program(X, X)
    assert log == ["prepare", "close"]
    assert [(e.partition, e.name, e.what, e.duration) for e in events if isinstance(e, OperatorRun)] == [
        ("faulty_0", "", "Add", 7),
        ("faulty_0", "end", "Add", 8),
    ]


def test_closing_the_program_closes_profiled_delegates():
    log, events = list[str](), list[Event]()
    program = loaded(lambda report: Profiled(report, log))
    with program.listen(events.append, inner=True):
        program(X, X)
        program.close()
        assert log == ["prepare", "close"]
    assert isinstance(events[-1], OperatorRun)


def test_other_contexts_are_not_profiled():
    log, events = list[str](), list[Event]()
    program = loaded(lambda report: Profiled(report, log))
    other = program.context()
    with program.listen(events.append, inner=True), other.listen(events.append):
        other(X, X)
        assert not any(isinstance(e, OperatorRun) for e in events)


def bang(*args: object) -> Any:
    raise RuntimeError("bang")


@pytest.mark.parametrize(
    ("profiled", "problem"),
    [(bang, "RuntimeError: bang"), (lambda report: 3, r"profiled\(\) returned a int, not a Delegate")],
)
def test_a_delegate_that_cannot_be_opened_again(profiled, problem):
    program = loaded(profiled)
    with pytest.raises(BackendFailed, match=f"{problem}.*partition faulty_0 of faulty"), program.profile(inner=True):
        pass
    assert np.array_equal(program(X, X), X + X)
    with program.profile() as profile:
        program(X, X)
    assert profile.timings


@pytest.mark.parametrize("keep", [False, True])
def test_a_profiled_delegate_that_fails_at_a_call(keep):
    program = loaded(lambda report: type("Bad", (Sum,), {"execute": bang})(), keep=keep)
    events = list[Event]()

    def call() -> Any:
        with program.listen(events.append, inner=True):
            return program(X, X)

    if keep:
        assert np.array_equal(call(), X + X)
        assert [e.when for e in program.fallback_events] == ["run"]
    else:
        with pytest.raises(BackendFailed, match="bang"):
            call()
        assert not any(isinstance(e, InstructionRun) for e in events)
    assert np.array_equal(program(X, X), X + X)


def test_a_profiled_delegate_that_cannot_be_closed():
    program = loaded(lambda report: type("Bad", (Sum,), {"close": bang})())
    with pytest.raises(BackendFailed, match="could not be closed: RuntimeError: bang"), program.profile(inner=True):
        program(X, X)
    assert np.array_equal(program(X, X), X + X)


def test_a_listener_that_fails_at_an_operator():
    def broken(event: Event) -> None:
        if isinstance(event, OperatorRun):
            bang()

    program = loaded(lambda report: Profiled(report, []))
    with pytest.raises(ListenerError, match="OperatorRun"), program.listen(broken, inner=True):
        program(X, X)


def test_no_operators():
    assert Delegate.profiled(Sum(), bang) is None
    program = loaded(lambda report: None)
    with program.profile(inner=True) as profile:
        program(X, X)
    assert profile.operators_of(profile.timings[0]) == ()
