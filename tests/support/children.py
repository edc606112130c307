"""Cases run one after another in forked children, with limits of time and memory: what kills a child is a finding."""

from __future__ import annotations

import itertools
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import IO

_STATE = struct.Struct("<qd")  # the case that runs, and when it began
_TOGETHER = 200  # cases of one child, if it lives
_GRACE = 30.0  # times the limit of a case on the clock, until a child that does not come back to Python is killed


@dataclass(frozen=True)
class Finding:
    """A case that went wrong: its number, and how."""

    case: int
    what: str


class Slow(BaseException):
    """A case is past its limit of time; no `except Exception` stops it."""


Case = Callable[[int], str | None]  # None: as it should be


def run_cases(
    case: Case, cases: Iterator[int], *, seconds: float = 2.0, address_space: int = 8 << 30, until: float = float("inf")
) -> Iterator[Finding]:
    """Run cases in children and give the findings.

    Args:
        case: what is wrong with a case, or None. It may raise, which is a finding, or kill its process.
        cases: their numbers; each is run once.
        seconds: of the processor a case may take.
        address_space: bytes that a child may have beside what this process has.
        until: when to stop, as `time.monotonic` counts.
    """
    pending: list[int] = []
    while time.monotonic() < until:
        pending = pending or list(itertools.islice(cases, _TOGETHER))
        if not pending:
            return
        pending, found = _batch(case, pending, seconds, address_space, until)
        yield from found


def _batch(
    case: Case, numbers: list[int], seconds: float, address_space: int, until: float
) -> tuple[list[int], list[Finding]]:
    """The cases that are left after a child has died, and what it found."""
    state = mmap.mmap(-1, _STATE.size)
    _STATE.pack_into(state, 0, -1, time.monotonic())
    sys.stdout.flush()
    with tempfile.TemporaryFile() as found:  # a pipe would block a child that finds much
        child = os.fork()
        if child == 0:
            _child(case, numbers, seconds, address_space, until, state, found)
        hung = _wait(child, state, seconds)
        found.seek(0)
        findings = [_finding(line) for line in found.read().splitlines()]
    _, status = os.waitpid(child, 0)
    last, _ = _STATE.unpack_from(state)
    if status == 0:
        return [], findings
    how = "it hung, and Python did not get to stop it" if hung else f"it died: {_death(status)}"
    rest = numbers[numbers.index(last) + 1 :] if last in numbers else []
    return rest, [*findings, Finding(last, how)]


def _wait(child: int, state: mmap.mmap, seconds: float) -> bool:
    """Wait for a child to end; kill it where one case takes many times its limit. Gives whether that was so."""
    while True:
        info = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            return False
        _, begun = _STATE.unpack_from(state)
        if begun and time.monotonic() - begun > _GRACE * seconds:  # it is 0 for a moment while it is written
            os.kill(child, signal.SIGKILL)
            return True
        time.sleep(0.005)


def _child(
    case: Case, numbers: list[int], seconds: float, address_space: int, until: float, state: mmap.mmap, found: IO[bytes]
) -> None:
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (used + address_space,) * 2)
        signal.signal(signal.SIGPROF, _slow)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        for number in numbers:
            if time.monotonic() > until:
                break
            _STATE.pack_into(state, 0, number, time.monotonic())
            if what := _one(case, number, seconds):
                found.write(f"{number} {' '.join(what.split())[:800]}\n".encode())
                found.flush()
        status = 0
    finally:
        os._exit(status)


def _slow(number: int, frame: FrameType | None) -> None:
    raise Slow


def _one(case: Case, number: int, seconds: float) -> str | None:
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            return case(number)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except Slow:
        return f"it takes more than {seconds} s of the processor"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno} {last.name})"


def _finding(line: bytes) -> Finding:
    number, _, what = line.decode().partition(" ")
    return Finding(int(number), what)


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.waitstatus_to_exitcode(status)}"
