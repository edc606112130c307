"""Work in a thread of its own. `concurrent.futures` would do; importing it, and `logging` with it, slows loading."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def cores() -> int:
    """The number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Task(Generic[T]):
    """A call that starts at once in another thread.

    >>> Task(lambda: 6 * 7).result()
    42
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="delegate-task", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # raised again where the result is wanted
            self._error = error

    def result(self) -> T:
        """Wait for the end of the call; gives its result, or raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]
