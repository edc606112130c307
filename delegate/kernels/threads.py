"""Threads for kernels whose inner loops release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING

from delegate.program.task import cores

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_POOL: list[ThreadPoolExecutor] = []
_LOCK = Lock()


def run_in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Call `work(first, end)` on parts of range(count) in parallel: one part per core, the last in this thread.

    Exceptions of `work` are raised when all parts have finished.
    """
    parts = min(cores(), count)
    bounds = [count * i // parts for i in range(parts + 1)]
    waiting = [_pool().submit(work, first, end) for first, end in pairwise(bounds[:-1])]
    try:
        work(bounds[-2], bounds[-1])
    finally:
        for part in waiting:
            part.exception()
    for part in waiting:
        part.result()


def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # imports logging, which the runtime otherwise does not need

    with _LOCK:
        if not _POOL:
            _POOL.append(ThreadPoolExecutor(cores(), "delegate-kernels"))
        return _POOL[0]


def _reset_after_fork() -> None:
    """Drop the pool in a forked process, where the threads of the parent do not exist."""
    global _LOCK  # noqa: PLW0603 - another thread of the parent may hold it
    _LOCK = Lock()
    _POOL.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
