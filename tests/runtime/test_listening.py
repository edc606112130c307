"""Listeners of loads and calls: events are complete and in order, and a failing listener changes no result."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import delegate
from delegate.errors import InputError, ListenerError
from delegate.events.kinds import DelegateOpened, Event, InstructionRun, MethodRun, ProgramLoaded
from delegate.program.file import serialize
from tests.support.cases.watched import Loop, X, net
from tests.support.lowering import assert_same, compiled


class Sizes(nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.nonzero(a > 0).sum(1), 0)


def runs(events: list[Event]) -> list[InstructionRun]:
    return [e for e in events if isinstance(e, InstructionRun)]


def test_the_events_of_a_call():
    program, events = net().loaded, list[Event]()
    with program.listen(events.append):
        program(X.numpy())
    first, kernel, last, call = events
    assert [e.instruction.what for e in runs(events)] == [
        "partition xnnpack_0",
        "aten.cumsum.default",
        "partition xnnpack_1",
    ]
    assert [e.instruction.kind for e in runs(events)] == ["partition", "kernel", "partition"]
    assert [e.instruction.backend for e in runs(events)] == ["xnnpack", "", "xnnpack"]
    assert [e.instruction.module for e in runs(events)] == ["first", "", "last"]
    assert "watched.py" in kernel.instruction.source
    sizes = [(e.instruction.input_bytes, e.instruction.output_bytes) for e in runs(events)]
    assert sizes == [(48, 96), (96, 96), (96, 24)]
    assert set(first.instruction.writes) == set(kernel.instruction.reads)
    assert set(kernel.instruction.writes) == set(last.instruction.reads)
    assert isinstance(call, MethodRun)
    assert call.method == "forward"
    assert {e.thread for e in (*runs(events), call)} == {threading.get_ident()}
    assert all(call.start <= e.start and e.start + e.duration <= call.start + call.duration for e in runs(events))


@pytest.mark.parametrize(
    ("module", "backends", "counts"),
    [
        (nn.Linear(4, 2), ["xnnpack"], {"partition xnnpack_0": 2}),
        (Loop(), [], {"while": 2, "aten.sin.default": 10}),
        (Sizes(), [], {"aten.nonzero.default": 2, "aten.cumsum.default": 2}),
    ],
    ids=["one partition", "control flow", "sizes from data"],
)
def test_each_run_is_an_event(module, backends, counts):
    program = compiled(module.eval(), (X,), backends=backends).loaded
    want, events = program(X.numpy()), list[Event]()
    with program.listen(events.append):
        for _ in range(2):
            assert_same(program(X.numpy()), want)
    found = Counter(e.instruction.what for e in runs(events))
    assert {what: found[what] for what in counts} == counts
    warm_up = Counter(e.instruction.what for e in runs(events) if e.is_warm_up)
    assert {what: warm_up[what] for what in counts} == dict.fromkeys(counts, 1)
    assert sum(isinstance(e, MethodRun) for e in events) == 2


def test_the_bytes_of_sizes_from_data():
    program, events = compiled(Sizes(), (X,)).loaded, list[Event]()
    with program.listen(events.append):
        program(X.numpy())
    (run,) = (e for e in runs(events) if e.instruction.what == "aten.nonzero.default")
    assert (run.instruction.input_bytes, run.instruction.output_bytes) == (12, int((X > 0).sum()) * 2 * 8)


def test_each_size_is_bound_and_warmed_up():
    rows = Dim("rows", min=1, max=16)
    program = compiled(nn.Sigmoid(), (X,), dynamic_shapes=({0: rows},)).loaded
    events = list[Event]()
    with program.listen(events.append):
        for count in (3, 5, 3):
            program(np.zeros((count, 4), np.float32))
    assert [(e.instruction.output_bytes, e.is_warm_up) for e in runs(events)] == [(48, True), (80, True), (48, False)]
    assert len({e.instruction.id for e in runs(events)}) == 1


def test_without_calls():
    program, events = net().loaded, list[Event]()
    with program.listen(events.append), pytest.raises(InputError):
        program(X.numpy()[:1])
    program(X.numpy())
    assert events == []


def test_several_listeners():
    program, outer, inner = net().loaded, list[Event](), list[Event]()
    with program.listen(outer.append):
        program(X.numpy())
        with program.listen(inner.append):
            program(X.numpy())
        program(X.numpy())
    assert (len(runs(outer)), len(runs(inner))) == (9, 3)
    assert len({e.instruction.id for e in runs(outer)}) == 3
    assert outer[4:8] == inner


@pytest.mark.parametrize("error", [ValueError("no disk"), SystemExit(3)])
def test_a_listener_that_fails_gets_no_more_events(error):
    program, others, calls = net().loaded, list[Event](), list[Event]()
    want = program(X.numpy())

    def broken(event: Event) -> None:
        calls.append(event)
        raise error

    def call(*arrays: Any) -> None:
        with program.listen(broken):
            for array in arrays:
                assert_same(program(array), want)

    with (
        program.listen(others.append),
        pytest.raises(ListenerError, match=r"listener .*broken failed: .*InstructionRun") as caught,
    ):
        call(X.numpy(), X.numpy())
    assert caught.value.__cause__ is error
    assert (len(calls), len(runs(others))) == (1, 6)
    assert program.fallback_events == ()
    with pytest.raises(InputError):  # the error of the block goes first
        call(X.numpy(), X.numpy()[:1])
    call()


def test_contexts_in_threads():
    program, events = net().loaded, list[Event]()
    contexts = [program.context() for _ in range(3)]

    def work(context: Any) -> None:
        with context.listen(events.append):
            for _ in range(4):
                context(X.numpy())

    threads = [threading.Thread(target=work, args=(c,)) for c in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    program(X.numpy())
    assert sorted(Counter(e.context for e in runs(events)).values()) == [12, 12, 12]
    assert len({(e.context, e.thread) for e in runs(events)}) == 3


@pytest.mark.parametrize("isolate", [False, True])
def test_the_events_of_a_load(isolate):
    data, events, want = serialize(net().program), list[Event](), net().loaded(X.numpy())
    with delegate.listen(events.append), delegate.load(data, isolate=isolate) as program:
        assert_same(program(X.numpy()), want)
    mine = [e for e in events if isinstance(e, DelegateOpened | ProgramLoaded)]
    assert [type(e).__name__ for e in mine[:3]] == ["DelegateOpened", "DelegateOpened", "ProgramLoaded"]
    loaded = mine[2]
    assert [e.partition for e in mine[:2]] == ["xnnpack_0", "xnnpack_1"]
    assert isinstance(loaded, ProgramLoaded)
    assert loaded.methods == ("forward",)
    assert loaded.bytes >= sum(e.bytes for e in mine[:2]) > 0
    assert all(loaded.start <= e.start <= loaded.start + loaded.duration for e in mine[:2])
    delegate.load(data).close()
    assert events == mine


def test_the_events_of_calls_with_isolated_delegates():
    with delegate.load(serialize(net().program), isolate=True) as program:
        events = list[Event]()
        with program.listen(events.append, inner=True):
            program(X.numpy())
        assert len(runs(events)) == 3
