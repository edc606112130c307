"""Work in a fork of this process, which may crash or hang: what it said until then, and how it ended."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch

from delegate.errors import BackendUnavailable
from delegate.probing.process import ended

_SHORTEST, _LONGEST = 0.0005, 0.05  # seconds between two looks at whether it has ended


class Said(NamedTuple):
    """What a fork said.

    Args:
        items: in its order.
        ending: how it ended where it did not come to its end, e.g. "was killed by SIGSEGV"; else empty.
        late: whether that was for its time.
    """

    items: list[Any]
    ending: str
    late: bool


def in_fork(work: Callable[[Callable[[Any], None]], None], limit: float) -> Said:
    """Run work in a fork of this process, which has all that is here: graphs, weights, options.

    Args:
        work: is given a function that says something, which has to be picklable. It must not raise.
        limit: seconds until it is killed.

    Raises:
        BackendUnavailable: this system has no fork.
    """
    if not hasattr(os, "fork"):
        raise BackendUnavailable("compiling in a process of its own needs fork", remedy="leave out `isolate`")
    with tempfile.TemporaryFile() as file:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads here: the fork needs none of them
            process = os.fork()
        if not process:
            _run(work, file.fileno())
        try:
            status = _wait(process, limit)
        except BaseException:
            _kill(process)
            raise
        file.seek(0)
        items, whole = _read(file)
    if status is None:
        return Said(items, f"gave no answer in {limit:g} s", late=True)
    code = os.waitstatus_to_exitcode(status)
    return Said(items, "" if code == 0 and whole else ended(code), late=False)


def _run(work: Callable[[Callable[[Any], None]], None], descriptor: int) -> NoReturn:
    """In the fork: work, and end without what is to be done at the end of this process."""
    try:
        faulthandler.disable()  # how it ended is told by the process that waits for it
        os.setsid()  # with what it starts itself it is ended as one
        torch.set_num_threads(1)  # its other threads are not in a fork, and would be waited for
        with open(descriptor, "wb", closefd=False) as out:

            def say(item: Any) -> None:
                pickle.dump(item, out, protocol=5)
                out.flush()

            work(say)
            say(...)
    finally:
        os._exit(0)


def _wait(process: int, limit: float) -> int | None:
    """The status with which a process ends; None where it was killed for its time."""
    end, pause = time.monotonic() + limit, _SHORTEST
    while True:
        ended_process, status = os.waitpid(process, os.WNOHANG)
        if ended_process:
            return status
        if time.monotonic() > end:
            _kill(process)
            return None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def _kill(process: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(process, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it has no group yet
            continue
    os.waitpid(process, 0)


def _read(file: Any) -> tuple[list[Any], bool]:
    """What was said, and whether that is all."""
    items: list[Any] = []
    while True:
        try:
            item = pickle.load(file)
        except Exception:  # it ended amid a sentence, or its memory was damaged
            return items, False
        if item is ...:
            return items, True
        items.append(item)
