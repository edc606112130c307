"""Child processes of Python that end with this one, and questions to plugins with a time limit each."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from delegate.plugins import Plugin
from delegate.probing.lifeline import Lifeline

T = TypeVar("T")

UNNAMED_LIMIT = 10.0  # seconds of a plugin that the user did not name, for each of its answers
_BYTES_PER_SECOND = 1 << 26  # of weights: a third of what OpenVINO converts and opens on two busy cores
# Seconds per question; the AOT part imports torch. For "use" the time begins after that import.
LIMITS = {"probe": UNNAMED_LIMIT, "aot": 60.0, "runtime": 10.0, "use": UNNAMED_LIMIT}
_ACTIVITY = {
    "probe": "while probed",
    "aot": "while its AOT part was imported",
    "runtime": "while its runtime part was",
    "use": "while its parts were imported and created",
}
# `-P` keeps the working directory out of the path. The child is bound to its parent before it imports anything else.
_START = (
    "import sys; sys.path[:] = {path!r}; from delegate.probing.lifeline import end_with_parent; {bind}"
    "from {module} import {function}; {function}(*{arguments!r})"
)
PATIENCE = 6  # times the limit, if a process waits for a core on a busy machine
_MAX_OUTPUT = 10_000  # characters of the output of a failed process


class CannotAsk(Exception):
    """No process can be started here."""


@dataclass(frozen=True)
class Failed:
    """The result of a process that gave no answer.

    Args:
        problem: the way it ended, e.g. "was killed by SIGSEGV while probed".
        words: the end of its output, such as the Python stack of the crash.
    """

    problem: str
    words: str


class Child:
    """A Python process that calls one function. It ends with this object, and with this process.

    Attributes:
        process: the leader of its own session.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, main: str, arguments: Sequence[Any], pass_fds: Sequence[int], popen: dict[str, Any]) -> None:
        if not sys.executable:
            raise OSError("Python does not report the path of its executable")
        module, _, function = main.partition(":")
        lifeline = Lifeline() if os.name == "posix" else None
        bind = f"end_with_parent({lifeline.child_end}); " if lifeline else ""
        code = _START.format(
            path=search_path(), bind=bind, module=module, function=function, arguments=tuple(arguments)
        )
        try:
            self.process: subprocess.Popen[Any] = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=(*pass_fds, *((lifeline.child_end,) if lifeline else ())),
                start_new_session=True,  # interrupts at the terminal are not for it; what it starts ends with it
                **popen,
            )
        except BaseException:
            if lifeline:
                lifeline.close()
            raise
        finally:
            if lifeline:
                lifeline.handed_over()
        self._finalizer = weakref.finalize(self, _end_child, self.process, lifeline, os.getpid())

    @classmethod
    def start(cls, main: str, *arguments: Any, pass_fds: Sequence[int] = (), **popen: Any) -> Child:
        """Start a process.

        Args:
            main: "module:function" that it calls.
            arguments: The function's arguments; their `repr` is Python for them.
            pass_fds: descriptors that it inherits.
            popen: further arguments of `subprocess.Popen`.
        """
        return uninterrupted(partial(cls, main, arguments, pass_fds, popen))

    def end(self) -> None:
        """Kill the process and those that it started."""
        uninterrupted(self._finalizer)

    def abandon(self) -> None:
        """Drop the process without ending it, in a fork of its owner."""
        self._finalizer.detach()
        self.process.returncode = 0  # not this process's child


def uninterrupted(work: Callable[[], T]) -> T:
    """Run work in another thread, because interrupts are raised in the main one, perhaps between a resource and its
    owner.

    An interrupt is raised when the work is done. The result is then dropped, so it must clean up after itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    try:
        threading.Thread(target=run, name="delegate-uninterrupted", daemon=True).start()
    except RuntimeError:  # no more threads, or the interpreter is ending
        return work()
    interrupt: BaseException | None = None
    while not results and not errors:  # a wait that a signal ends is begun again
        try:
            done.acquire()
        except BaseException as error:
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt
    if errors:
        raise errors[0]
    return results[0]


def ask(plugin: Plugin, question: str) -> dict[str, Any] | Failed:
    """Query a plugin in a separate process, and return the answer of `worker.main`.

    Raises:
        CannotAsk: no process can be started here.
    """
    limit = LIMITS[question]
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        try:
            child = Child.start(
                "delegate.probing.worker:main",
                question,
                limit,
                *plugin,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=errors,
            )
        except OSError as error:
            raise CannotAsk(str(error)) from error
        try:
            if question == "use":
                _wait_for_torch(child.process, answer)
            status = exit_code(child.process, limit)
        finally:
            child.end()
        ending = f"gave no answer in {limit:g} s" if status is None else ended(status)
        with contextlib.suppress(ValueError):
            data = json.loads(_read(answer))
            if isinstance(data, dict):
                return data
        return Failed(f"{ending} {_ACTIVITY[question]}", _read(errors)[-_MAX_OUTPUT:].strip())


def _wait_for_torch(process: subprocess.Popen[bytes], answer: IO[bytes]) -> None:
    """Wait until a process has imported torch, after which it writes a space before its answer."""
    clock = Clock(process.pid, LIMITS["aot"])
    while process.poll() is None and not os.fstat(answer.fileno()).st_size and clock.left > 0:
        time.sleep(0.01)


def seconds_for(weights: int) -> float:
    """Return the seconds that a plugin which the user did not name has more for weights of a size in bytes."""
    return weights / _BYTES_PER_SECOND


def search_path() -> list[str]:
    """Return the absolute module search path, for a process that may start in another folder."""
    return [os.path.abspath(entry) for entry in sys.path]


class Clock:
    """The remaining time of a process. Time spent waiting for a core does not count.

    Args:
        pid: The process's id.
        limit: seconds.
        most: seconds in all, with those in which it waits.
    """

    def __init__(self, pid: int, limit: float, most: float = math.inf) -> None:
        self.limit = limit
        self._pid, self._most = pid, most
        self._begun, self._waited = time.monotonic(), waited(pid)

    @property
    def left(self) -> float:
        """Return the remaining seconds; 0 or less if the time is up."""
        idle = min(waited(self._pid) - self._waited, (PATIENCE - 1) * self.limit)
        return min(self.limit + idle, self._most) - (time.monotonic() - self._begun)


def exit_code(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """Wait for a process and return its exit code; None if its time is up."""
    clock = Clock(process.pid, limit)
    while (left := clock.left) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(left)
    return None


def waited(pid: int) -> float:
    """Return the seconds a process waited for a core, if the system reports them (Linux: proc(5), schedstat)."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def ended(code: int) -> str:
    """Describe the end of a process, e.g. "was killed by SIGSEGV"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _end_child(process: subprocess.Popen[Any], lifeline: Lifeline | None, owner: int) -> None:
    if os.getpid() != owner:
        return
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    if lifeline:
        lifeline.close()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
