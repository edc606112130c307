"""The side that asks: a process per question, ended when its time is up."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from delegate.plugins import Plugin

LIMITS = {"probe": 10.0, "aot": 60.0, "runtime": 10.0}  # seconds for each question: the AOT half imports torch
_DOING = {"probe": "while probed", "aot": "while its AOT half was imported", "runtime": "while its runtime half was"}
_START = (
    "import sys; sys.path[:] = {path!r}; from delegate.probing.worker import main; "
    "main({question!r}, {limit}, *{plugin!r})"
)
PATIENCE = 6  # times the limit, where the machine is so busy that a process waits for a core
_MOST_WORDS = 10_000  # characters of what a process that failed had to say


class CannotAsk(Exception):
    """No process can be started here."""


@dataclass(frozen=True)
class Failed:
    """A process that gave no answer.

    Args:
        problem: how it ended, e.g. "was killed by SIGSEGV while probed".
        words: the end of what it printed, such as the Python stack of the crash.
    """

    problem: str
    words: str


def ask(plugin: Plugin, question: str) -> dict[str, Any] | Failed:
    """Put a question to a plugin in a process of its own; gives what `worker.main` answers.

    Raises:
        CannotAsk: no process can be started here.
    """
    limit = LIMITS[question]
    code = _START.format(path=search_path(), question=question, limit=limit, plugin=tuple(plugin))
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        if not sys.executable:
            raise CannotAsk("Python does not know its own program")
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=said,
                start_new_session=True,  # with what it starts itself it is ended as one
            )
        except OSError as error:
            raise CannotAsk(str(error)) from error
        try:
            status = exit_code(process, limit)
        finally:
            end(process)
        ending = f"gave no answer in {limit:g} s" if status is None else ended(status)
        with contextlib.suppress(ValueError):
            made = json.loads(_read(answer))
            if isinstance(made, dict):
                return made
        return Failed(f"{ending} {_DOING[question]}", _read(said)[-_MOST_WORDS:].strip())


def search_path() -> list[str]:
    """Where Python looks for modules, for a process that may stand in another folder."""
    return [os.path.abspath(entry) for entry in sys.path]


class Clock:
    """The time that a process has from now on, of which waiting for a core is no part.

    Args:
        pid: of the process.
        limit: seconds.
        most: seconds in all, with those in which it waits.
    """

    def __init__(self, pid: int, limit: float, most: float = math.inf) -> None:
        self.limit = limit
        self._pid, self._most = pid, most
        self._begun, self._waited = time.monotonic(), waited(pid)

    @property
    def left(self) -> float:
        """Seconds; 0 or less where its time is up."""
        idle = min(waited(self._pid) - self._waited, (PATIENCE - 1) * self.limit)
        return min(self.limit + idle, self._most) - (time.monotonic() - self._begun)


def exit_code(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """How a process ends; None where its time is up."""
    clock = Clock(process.pid, limit)
    while (left := clock.left) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(left)
    return None


def waited(pid: int) -> float:
    """Seconds that a process could have run and had no core, where the system tells (Linux: proc(5), schedstat)."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def ended(code: int) -> str:
    """How a process ended, e.g. "was killed by SIGSEGV"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process, which leads a session of its own, and what it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
