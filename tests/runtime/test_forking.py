"""Programs and new processes: forked ones go on with them, spawned ones load them; locks and states are told right."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import BackendFailed, ExecutionError
from delegate.kernels.table import KernelTable
from delegate.program.file import serialize
from delegate.registry import default_registry
from delegate.runtime.loaded import LoadedProgram
from tests.runtime import stranger

pytestmark = pytest.mark.usefixtures("with_stranger")

METHODS = [m for m in ("fork", "spawn", "forkserver") if m in multiprocessing.get_all_start_methods()]
X = np.ones((2, 3), np.float32)


def forked(work: Callable[[], bool], seconds: int = 60) -> int:
    """What becomes of a forked process: 0 where `work` gives True there, SIGALRM's -14 where it hangs."""
    if (child := os.fork()) == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def right(program: LoadedProgram, first: float = 1) -> bool:
    return bool(np.array_equal(program(X * first, X), X * first + X))


@pytest.mark.parametrize("isolate", [False, True])
def test_a_forked_process_goes_on(isolate):
    with delegate.load(stranger.program(), isolate=isolate) as program:
        context = program.context()
        assert right(program)

        def work() -> bool:
            return right(program, 2) and right(context, 3) and right(program.context(), 4)

        assert forked(work) == 0
        assert right(program, 5)
        assert forked(work) == 0

        def grandchild() -> bool:
            return right(program) and forked(work) == 0 and right(program)

        assert forked(grandchild) == 0
        assert forked(lambda: program.close() is None) == 0
        assert right(program, 6)


@pytest.mark.parametrize("isolate", [False, True])
def test_fork_while_other_threads_are_in_calls(isolate):
    with delegate.load(stranger.program({}, {}, dynamic=True), isolate=isolate) as program:
        stop = threading.Event()

        def calls(first: float) -> None:
            while not stop.is_set():
                program(X * first, X)

        threads = [threading.Thread(target=calls, args=(n,)) for n in (1, 2)]
        for thread in threads:
            thread.start()
        try:
            found = [forked(lambda: bool(np.array_equal(program(X, X), 3 * X)), 30) for _ in range(8)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert found == [0] * 8


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return torch.sin(a) + self.count


def test_states_are_kept_but_for_those_that_a_call_was_writing():
    entered, go_on = threading.Event(), threading.Event()
    table = KernelTable("waits")
    waits = [False]

    @table.kernel("aten.sin.default")
    def sin(a, *, out):
        if waits[0]:
            entered.set()
            go_on.wait()
        np.sin(a, out=out)

    data = serialize(delegate.to_backend(torch.export.export(Counter(), (torch.zeros(2),)), []).program)
    a = np.zeros(2, np.float32)
    with delegate.load(data, kernels=[table]) as program:
        snapshot = program.snapshot()
        assert program(a).tolist() == [1, 1]
        assert forked(lambda: program(a).tolist() == [2, 2]) == 0
        waits[0] = True
        thread = threading.Thread(target=program, args=(a,))
        thread.start()
        entered.wait()
        waits[0] = False

        def work() -> bool:
            for ask in (lambda: program(a), program.snapshot):
                with pytest.raises(ExecutionError, match="another thread was in a call"):
                    ask()
            other = program.context()(a).tolist() == [1, 1]
            program.restore(snapshot)
            return other and program(a).tolist() == [1, 1] and program(a).tolist() == [2, 2]

        assert forked(work) == 0
        go_on.set()
        thread.join()
        assert program(a).tolist() == [3, 3]


def test_profiles_and_closing_in_a_forked_process():
    with delegate.load(stranger.program({}, {})) as program:

        def work() -> bool:
            with program.profile() as profile:
                program(X, X)
            return len(profile.timings) == 2 and program.close() is None

        assert forked(work) == 0


@pytest.mark.parametrize("inner", [False, True])
def test_a_fork_while_a_listener_is_active(inner):
    with delegate.load(stranger.program({}, {})) as program, program.profile(inner=inner) as profile:
        program(X, X)

        def work() -> bool:
            program(X, X)
            with program.profile(inner=inner) as own:
                program(X, X)
            return [t.count for t in profile.timings] == [3, 3] and [t.count for t in own.timings] == [1, 1]

        assert forked(work) == 0
    assert [t.count for t in profile.timings] == [1, 1]


def test_a_library_that_does_not_follow_a_fork(monkeypatch):
    monkeypatch.setattr(stranger.StrangerRuntime, "fork_safe", False)
    with delegate.load(stranger.program()) as program:

        def work() -> bool:
            with pytest.raises(BackendFailed, match=r"forked.*spawn or forkserver"):
                program(X, X)
            with delegate.load(stranger.program()) as fresh:
                return right(fresh)

        assert forked(work) == 0
        assert right(program)
    with delegate.load(stranger.program(fallback=True), fallback="allow") as program:
        assert forked(lambda: right(program) and len(program.fallback_events) == 1) == 0


def test_xnnpack_in_forked_processes():
    torch.manual_seed(0)
    module, a = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval(), torch.randn(1, 3, 20, 20)
    data = serialize(delegate.to_backend(torch.export.export(module, (a,)), "xnnpack").program)
    with delegate.load(data) as program:
        expected = program(a.numpy()).tobytes()
        stop = threading.Event()

        def calls() -> None:
            while not stop.is_set():
                program(a.numpy())

        thread = threading.Thread(target=calls)
        thread.start()
        try:
            found = [forked(lambda: program(a.numpy()).tobytes() == expected, 30) for _ in range(5)]
        finally:
            stop.set()
            thread.join()
        assert found == [0] * 5


def work_on_file(path: str) -> list[float]:
    default_registry.cache_clear()
    default_registry().register(stranger.INFO)
    with delegate.load(path) as program:
        return [float(v) for v in program(X, X)[0]]


@pytest.mark.parametrize("method", METHODS)
def test_start_methods_of_multiprocessing(method, tmp_path):
    path = tmp_path / "sum.dlg"
    path.write_bytes(stranger.program())
    with delegate.load(path) as program:
        assert right(program)
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(work_on_file, [str(path)] * 4) == [[2.0, 2.0, 2.0]] * 4
        assert right(program)


def test_pickling_says_what_to_do_instead():
    with delegate.load(stranger.program()) as program:
        for thing in (program, program.context(), program.method("forward")):
            with pytest.raises(TypeError, match="load the program's file in the other process"):
                pickle.dumps(thing)
