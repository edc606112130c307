"""Separate processes: answers and errors, how each kind of end is told, and that no answer is believed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from delegate.errors import BackendFailed, BackendUnavailable, DelegateError, KernelError
from delegate.processes.answering import Questions
from delegate.processes.channel import share
from delegate.processes.limits import Clock
from delegate.processes.process import Process, ProcessEnded


def questions(number: int = 0) -> Questions:
    """Return questions for tests; a number in the table says that its arguments arrive."""
    return {
        "number": lambda *_: number,
        "echo": lambda message, _: message,
        "several": lambda count, _: iter(range(count)),
        "read": lambda _, files: os.pread(files[0], 100, 0).decode(),
        "exit": lambda code, _: os._exit(code),
        "crash": lambda *_: os.kill(os.getpid(), signal.SIGSEGV),
        "hang": _hang,
        "raise": lambda *_: {}["a fault\nin two lines"],
        "absent": _raise_absent,
    }


def _hang(*_: Any) -> None:
    os.write(1, b"waiting for a licence server")
    time.sleep(600)


def _raise_absent(*_: Any) -> None:
    raise BackendUnavailable("the device is absent", where="socket 3", remedy="plug it in")


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process(f"{__name__}:questions", 5, is_quiet=True)
    yield made
    made.end()
    assert not made.is_running


def test_answers(process: Process) -> None:
    assert process.ask("number") == 5
    assert process.ask("echo", {"a": [1, None, "x"]}, limit=60.0) == {"a": [1, None, "x"]}
    process.send("several", 3)
    assert [process.receive() for _ in range(3)] == [0, 1, 2]
    with share([b"content"]) as file:
        assert process.ask("read", None, (file.fileno(),)).startswith("content")


def test_errors_arrive_whole_and_the_process_goes_on(process: Process) -> None:
    with pytest.raises(BackendUnavailable, match=r"the device is absent \(socket 3\): plug it in"):
        process.ask("absent")
    with pytest.raises(BackendFailed, match="KeyError: 'a fault"):
        process.ask("raise")
    assert process.ask("number") == 5


ENDS = {
    "crash": (None, "was killed by SIGSEGV", "Segmentation fault"),
    "exit": (7, "ended with exit code 7", ""),
    "hang": (None, "gave no answer in 1 s", "waiting for a licence server"),
}


@pytest.mark.parametrize("question", ENDS)
def test_ends(process: Process, question: str) -> None:
    message, ending, output = ENDS[question]
    with pytest.raises(ProcessEnded) as caught:
        process.ask(question, message, limit=1.0 if question == "hang" else 60.0)
    end = caught.value
    assert end.ending == ending
    assert output in end.output
    assert question != "hang" or "in _hang" in end.output  # where it hangs
    assert (end.has_started, end.was_taken, end.is_late) == (True, True, question == "hang")
    assert not process.is_running


def test_one_that_ended_while_idle_did_not_take_the_question(process: Process) -> None:
    assert process.ask("number") == 5
    os.kill(process.process.pid, signal.SIGKILL)
    process.process.wait()
    with pytest.raises(ProcessEnded, match="SIGKILL") as caught:
        process.ask("number")
    assert not caught.value.was_taken


def test_one_that_cannot_start() -> None:
    process = Process("no_such_module:questions", is_quiet=True)
    with pytest.raises(ProcessEnded, match="exit code 1") as caught:
        process.ask("number")
    assert not caught.value.has_started
    assert "No module named 'no_such_module'" in caught.value.output


def test_an_idle_process_ends() -> None:
    process = Process(f"{__name__}:questions", idle_limit=0.3)
    assert process.ask("number") == 0
    process.process.wait(20)
    assert not process.is_running


BYTES = {
    "a long message": b"\xff" * 8,
    "no JSON": (5).to_bytes(8, sys.byteorder) + b"{{{{{",
    "deep JSON": (600000).to_bytes(8, sys.byteorder) + b"[" * 600000,
}
LIES = {
    **{name: f"os.write(FD, {text[:8]!r} + {text[8:9]!r} * {len(text) - 8})" for name, text in BYTES.items()},
    "half a message": "os.write(FD, b'123'); time.sleep(600)",
}


def lies(code: str) -> Questions:
    """Return a question whose answer is written past the channel."""
    import socket

    def lie(*_: Any) -> None:
        for fd in range(3, 64):
            try:
                socket.socket(fileno=os.dup(fd)).close()
            except OSError:
                continue
            exec(code.replace("FD", str(fd)), {"os": os, "time": time})

    return {"lie": lie}


@pytest.mark.parametrize("lie", LIES)
def test_one_that_lies_is_ended(lie: str) -> None:
    process = Process(f"{__name__}:lies", LIES[lie])
    with pytest.raises(ProcessEnded, match="gave no answer in 1 s" if "half" in lie else "returned an invalid answer"):
        process.ask("lie", limit=1.0 if "half" in lie else None)
    assert not process.is_running


ANSWERS: dict[str, tuple[Any, type[Exception], str]] = {
    "another type": (3, ProcessEnded, "invalid answer"),
    "too short": ({"error": ["BackendFailed", "x"]}, ProcessEnded, "invalid answer"),
    "not text": ({"error": ["BackendFailed", 1, 2, 3]}, ProcessEnded, "invalid answer"),
    "a class of Python": ({"error": ["SystemExit", "x", "", ""]}, ProcessEnded, "invalid answer"),
    "an error": ({"error": ["KernelError", "x", "y", "z"]}, KernelError, r"x \(y\): z"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_data(name: str, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, kind, words = ANSWERS[name]
    assert process.ask("number") == 5
    monkeypatch.setattr(process, "_receive", lambda clock: answer)
    with pytest.raises((ProcessEnded, DelegateError), match=words) as caught:
        process.ask("number")
    assert type(caught.value) is kind


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells how long a process waits for a core")
def test_a_process_that_gets_no_core_does_not_hang() -> None:
    """Four that want half a second of one core: each takes longer than the limit on the clock."""
    pinned = "import os, time; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    work = f"{pinned}\nwhile time.process_time() < 0.6: pass"
    running = [subprocess.Popen([sys.executable, "-c", work]) for _ in range(4)]
    begun = time.monotonic()
    clocks = [Clock(p.pid, 1.5) for p in running]
    while any(p.poll() is None for p in running):
        assert not [p.pid for clock, p in zip(clocks, running, strict=True) if p.poll() is None and clock.left <= 0]
        time.sleep(0.05)
    assert time.monotonic() - begun > 1.5
