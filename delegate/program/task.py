"""Work in another thread, because importing `concurrent.futures`, and `logging` with it, would slow down loading."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call that starts immediately in another thread.

    >>> BackgroundCall(lambda: 6 * 7).result()
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
        except BaseException as error:  # raised again in `result`
            self._error = error

    def result(self) -> T:
        """Wait for the end of the call; return its result, or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]
