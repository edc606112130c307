"""The side that asks: a process per question, ended when its time is up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO, Any

from delegate.plugins import Plugin

LIMITS = {"probe": 10.0, "aot": 60.0, "runtime": 10.0}  # seconds for each question: the AOT half imports torch
_DOING = {"probe": "while probed", "aot": "while its AOT half was imported", "runtime": "while its runtime half was"}
_START = (
    "import sys; sys.path[:] = {path!r}; from delegate.probing.worker import main; "
    "main({question!r}, {limit}, *{plugin!r})"
)
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
    path = [os.path.abspath(entry) for entry in sys.path]
    code = _START.format(path=path, question=question, limit=limit, plugin=tuple(plugin))
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
            ending = ended(process.wait(limit))
        except subprocess.TimeoutExpired:
            ending = f"gave no answer in {limit:g} s"
        finally:
            _end(process)
        with contextlib.suppress(ValueError):
            made = json.loads(_read(answer))
            if isinstance(made, dict):
                return made
        return Failed(f"{ending} {_DOING[question]}", _read(said)[-_MOST_WORDS:].strip())


def ended(code: int) -> str:
    """How a process ended, e.g. "was killed by SIGSEGV"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
