"""Programs and new processes: a program stays with the process that loaded it, and any process may load the file."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest

import delegate
from delegate.errors import ExecutionError
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
    return bool(np.array_equal(program(X * first, X), X * first + X * (1 + (len(program.program.delegates) == 2))))


@pytest.mark.parametrize("isolate", [False, True])
def test_a_program_stays_with_the_process_that_loaded_it(isolate):
    """Also if other threads are in calls at the fork; a program that is loaded after it runs."""
    data = stranger.program({}, {}, dynamic=True)
    with delegate.load(data, isolate=isolate) as program:
        context, stop = program.context(), threading.Event()
        uses = {
            "program": lambda: program(X, X), "method": lambda: program.method("forward")(X, X),
            "context": lambda: context(X, X), "new context": program.context, "reset": context.reset,
            "snapshot": program.snapshot, "profile": lambda: program.profile().__enter__(),
        }  # fmt: skip

        def work() -> bool:
            for use in uses.values():
                with pytest.raises(ExecutionError, match=r"before this process was forked.*: load it in this process"):
                    use()
            with delegate.load(data, isolate=isolate) as own:
                found = right(own)
            return found and program.close() is None

        def calls() -> None:
            while not stop.is_set():
                program(X, X)

        thread = threading.Thread(target=calls)
        thread.start()
        try:
            assert [forked(work) for _ in range(4)] == [0] * 4
        finally:
            stop.set()
            thread.join()
        assert right(program)


def test_a_fork_while_a_listener_is_active():
    with delegate.load(stranger.program({}, {})) as program, program.profile(inner=True) as profile:
        program(X, X)

        def work() -> bool:
            with pytest.raises(ExecutionError, match="forked"):
                program(X, X)
            return True

        assert forked(work) == 0
        program(X, X)
    assert [t.count for t in profile.timings] == [2, 2]


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
