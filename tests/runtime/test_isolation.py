"""Delegates in a process of their own: the same answers; a crash is an error or the fallback; nothing is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import BackendFailed, BackendUnavailable, ProgramError
from delegate.plugins import PluginState
from delegate.processes.channel import open_shared_file
from delegate.program.file import serialize
from delegate.registry import default_registry
from delegate.runtime import isolated
from delegate.runtime.loaded import LoadedProgram
from tests.runtime import stranger
from tests.runtime.stranger import EXIT, HANG, PID, RAISE, SEGV, SLOW
from tests.support.sampling import every, only

pytestmark = pytest.mark.usefixtures("with_stranger")

ROOT = Path(__file__).parents[2]


def x(first: float = 0, rows: int = 2) -> np.ndarray:
    made = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    made[0, 0] = first
    return made


def load(data: bytes, **options: object) -> LoadedProgram:
    return delegate.load(data, isolate=True, **options)  # type: ignore[arg-type]


def pid(program: LoadedProgram) -> int:
    return int(program(x(PID), x())[0, 0])


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def ends(process: int) -> bool:
    deadline = time.monotonic() + 20
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_alive(process)


def stop(process: int) -> None:
    os.kill(process, signal.SIGSTOP)
    while Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.01)  # until then one of its threads may answer


def test_answers_are_those_of_the_process_itself():
    with load(stranger.program()) as program:
        for first in (1, 2, 3):
            np.testing.assert_array_equal(program(x(first), x()), x(first) + x())
        assert pid(program) != os.getpid()


def test_threads_and_contexts():
    with load(stranger.program({}, {}, dynamic=True)) as program:
        contexts = [program, program.context(), program.context()]

        def call(n: int) -> bool:
            a = x(n, 1 + n % 8)
            return bool(np.array_equal(contexts[n % 3](a, a), 3 * a))

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(call, range(120)))


CRASHES = {
    SEGV: "the process that runs it was killed by SIGSEGV",
    EXIT: "the process that runs it ended with exit code 7",
    RAISE: "ZeroDivisionError: a fault of the plugin in two lines",
}


@pytest.mark.parametrize("code", CRASHES)
def test_a_crash_at_a_call_is_an_error_and_the_next_call_is_right(code):
    with load(stranger.program({}, {})) as program:
        for _ in range(3):
            with pytest.raises(BackendFailed, match=CRASHES[code]) as caught:
                program(x(code), x())
            assert "partition stranger_0 of stranger" in str(caught.value)
            np.testing.assert_array_equal(program(x(1), x()), x(1) + 2 * x())


@pytest.mark.parametrize("code", CRASHES)
def test_a_crash_at_a_call_with_a_fallback(code):
    with load(stranger.program(fallback=True), fallback="warn") as program:
        with pytest.warns(RuntimeWarning, match="runs on portable kernels"):
            np.testing.assert_array_equal(program(x(code), x()), x(code) + x())
        np.testing.assert_array_equal(program(x(1), x()), x(1) + x())
        assert [e.when for e in program.fallback_events] == ["run"]


@pytest.mark.parametrize("code", CRASHES)
def test_a_crash_at_load(code):
    with pytest.raises(BackendFailed, match=CRASHES[code]):
        load(stranger.program({}, {"init": code}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with load(stranger.program({"init": code}, fallback=True)) as program:
            np.testing.assert_array_equal(program(x(1), x()), x(1) + x())


def test_a_crash_of_one_partition_in_a_call_of_another():
    """All delegates of a program share a process: what runs there meanwhile fails with it, and both are right again."""
    with load(stranger.program({}, dynamic=True)) as program:
        other = program.context()
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(program, x(SEGV), x()), pool.submit(other, x(1, 5), x(2, 5))
            with pytest.raises(BackendFailed, match="SIGSEGV"):
                first.result()
            np.testing.assert_array_equal(second.result(), x(1, 5) + x(2, 5))


def test_errors_of_a_backend_arrive_whole():
    with pytest.raises(
        BackendUnavailable, match=r"the device is absent \(partition stranger_0 .*socket 3\): plug it in"
    ):
        load(stranger.program({"absent": True}))
    with pytest.raises(BackendFailed, match="it adds two, not 3"):
        load(stranger.program(inputs=3))


def test_machine_code_wants_trust_here_too():
    with pytest.raises(BackendFailed, match="trust_code=True"):
        load(stranger.program({"code": True}))
    with load(stranger.program({"code": True}), trust_code=True) as program:
        np.testing.assert_array_equal(program(x(1), x()), x(1) + x())


def test_a_backend_in_main_is_refused(monkeypatch):
    monkeypatch.setattr(stranger.StrangerRuntime, "__module__", "__main__")
    with pytest.raises(BackendUnavailable, match="put it in a module"):
        load(stranger.program())


def test_no_process_without_delegates_and_one_for_all_of_them():
    with load(stranger.program({}, {}, {})) as program:
        assert pid(program) != os.getpid()
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        assert children.count(str(pid(program))) == 1


@pytest.mark.parametrize("how", only(["fail"], ["close", "collect", "fail"]))
def test_nothing_is_left(how):
    files = set(os.listdir("/proc/self/fd"))
    program = load(stranger.program({}, {}))
    process = pid(program)
    if how == "close":
        program.close()
        program.close()
        with pytest.raises(ProgramError, match="closed"):
            program(x(), x())
    elif how == "fail":
        with pytest.raises(BackendFailed):
            program(x(SEGV), x())
        program.close()
    del program
    gc.collect()  # frames of the error hold arrays
    assert ends(process)
    assert set(os.listdir("/proc/self/fd")) <= files


def test_close_tells_what_a_backend_raises(monkeypatch):
    monkeypatch.setenv("STRANGER_CLOSE", "1")
    program = load(stranger.program())
    process = pid(program)
    with pytest.raises(BackendFailed, match=r"it could not be closed.*it does not close"):
        program.close()
    assert ends(process)


@pytest.mark.parametrize(
    ("how", "isolate"), [("its close() hangs", True), ("it is stopped", True), ("it is stopped", 60.0), ("", 0.2)]
)
def test_close_waits_for_no_library_that_hangs(how, isolate, monkeypatch):
    """Nor does it wait as long as a call may take."""
    monkeypatch.setattr(isolated, "_CLOSE_LIMIT", 0.3)
    if how == "its close() hangs":
        monkeypatch.setenv("STRANGER_CLOSE", "hang")
    program = delegate.load(stranger.program(), isolate=isolate)
    worker = pid(program)
    if how != "its close() hangs":
        stop(worker)
    limit = 0.3 if how else isolate
    with pytest.raises(BackendFailed, match=rf"it could not be closed.*gave no answer in {limit} s"):
        program.close()
    assert ends(worker)


@pytest.mark.parametrize("isolate", [True, 60.0])
def test_close_after_the_end_of_the_process(isolate):
    """It was killed while it was idle."""
    program = delegate.load(stranger.program(), isolate=isolate)
    worker = pid(program)
    os.kill(worker, signal.SIGKILL)
    assert ends(worker)
    program.close()


def test_shared_memory_cannot_be_taken_away():
    """Whoever reads a mapped file that another process has cut is ended."""
    with open_shared_file(8192) as file, pytest.raises(PermissionError):
        os.ftruncate(file.fileno(), 0)


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
unguarded = True
print("main runs", flush=True)
import numpy as np
import delegate
from delegate.registry import default_registry
from tests.runtime import stranger
default_registry().register(stranger.INFO)
program = delegate.load({data!r}, isolate=True)
def call(code):
    return int(program(np.full((2, 3), code, np.float32), np.zeros((2, 3), np.float32))[0, 0])
print(call(stranger.MAIN), call(stranger.PID), flush=True)
"""


def test_main_is_not_run_again(tmp_path):
    """A program may be loaded unguarded, at the top of the main module."""
    path = tmp_path / "main.py"
    path.write_text(SCRIPT.format(root=str(ROOT), data=stranger.program()))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert (first, second.split()[0]) == ("main runs", "0")
    assert ends(int(second.split()[1]))


def test_an_interrupt_ends_a_call_that_hangs():
    with load(stranger.program()) as program:
        worker = pid(program)
        old = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                program(x(HANG), x())
        finally:
            signal.signal(signal.SIGALRM, old)
        assert ends(worker)
        np.testing.assert_array_equal(program(x(1), x()), x(1) + x())


@pytest.mark.parametrize("waits", [0.0, 0.2])
@pytest.mark.parametrize("what", ["the same sizes", "other sizes", "a new context"])
def test_a_process_that_was_killed_while_idle_is_started_again(what, waits):
    with load(stranger.program({}, {}, dynamic=True)) as program:
        os.kill(pid(program), signal.SIGKILL)
        time.sleep(waits)
        runs = program.context() if what == "a new context" else program
        rows = 5 if what == "other sizes" else 2
        np.testing.assert_array_equal(runs(x(1, rows), x(2, rows)), x(1, rows) + 2 * x(2, rows))


def test_closing_waits_for_a_call():
    program = load(stranger.program({}, {}))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(program, x(SLOW), x())
        time.sleep(0.1)
        program.close()
        np.testing.assert_array_equal(running.result(), x(SLOW) + 2 * x())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(a)).mean((2, 3))) + 1


REAL = ["xnnpack", "dsp", "webgpu"]


@pytest.mark.parametrize("backend", every(3, REAL))
def test_real_backends(backend):
    if default_registry().state(backend).state is not PluginState.OK:
        pytest.skip(f"{backend} is not available here")
    torch.manual_seed(0)
    a = torch.randn(1, 3, 8, 8)
    compiled = delegate.to_backend(torch.export.export(Net().eval(), (a,)), backend)
    data = serialize(compiled.program)
    assert compiled.program.delegates
    with delegate.load(data, trust_code=True) as here, delegate.load(data, trust_code=True, isolate=True) as there:
        for _ in range(3):
            np.testing.assert_array_equal(here(a.numpy()), there(a.numpy()))
