"""Time limits of separate processes, and the time that calls take and that processes wait for a core."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START_LIMIT = 60.0  # seconds for the start of Python; they do not count as a library's time
AOT_LIMIT = 60.0  # seconds to import an AOT part, which imports torch
UNNAMED_LIMIT = 10.0  # seconds of a plugin that the user did not name, for each of its answers
PATIENCE = 6  # times the limit, if a process waits for a core on a busy machine
_BYTES_PER_SECOND = 1 << 26  # of weights: a third of what OpenVINO converts and opens on two busy cores


def seconds_for(weights: int) -> float:
    """Return the seconds that a plugin which the user did not name has more for weights of a size in bytes."""
    return weights / _BYTES_PER_SECOND


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
        self._begun, self._waited = time.monotonic(), waiting_seconds(pid) if most > limit else 0.0

    @property
    def left(self) -> float:
        """Return the remaining seconds; 0 or less if the time is up."""
        total = self._most
        if self._most > self.limit:
            idle = min(waiting_seconds(self._pid) - self._waited, (PATIENCE - 1) * self.limit)
            total = min(self.limit + idle, self._most)
        return total - (time.monotonic() - self._begun)


def call_times(
    call: Callable[[], Any], seconds: float, least: int, reset: Callable[[], None] | None = None
) -> list[float]:
    """Return the seconds of each call, for about this many seconds in total, and at least so many calls.

    Each call starts with reset states.
    """
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        if reset is not None:
            reset()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def waiting_seconds(pid: int) -> float:
    """Return the seconds a process waited for a core, if the system reports them (Linux: proc(5), schedstat)."""
    return _read_schedstat(Path(f"/proc/{pid}/schedstat"))


def seconds_without_core() -> float:
    """Return the seconds that ready threads of this process had no core, on Linux with a hypervisor's share; else 0."""
    try:
        stolen = int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")  # of all cores
    except (OSError, ValueError, LookupError, AttributeError):
        stolen = 0.0
    return sum(map(_read_schedstat, Path("/proc/self/task").glob("*/schedstat"))) + stolen


def _read_schedstat(path: Path) -> float:
    try:
        return int(path.read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):  # not reported, or that thread has ended
        return 0.0
