"""Pool: the threads that run the calls of all models, in the order of their priorities."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from queue import SimpleQueue
from threading import Lock, Thread


class Pool:
    """Threads for the calls of all models. A smaller number is a higher priority; equal ones keep their order.

    Args:
        threads: calls that run at once.
    """

    def __init__(self, threads: int) -> None:
        self.requests = 0  # of all models, that are received, wait or run now
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._lock = Lock()
        self._tokens: SimpleQueue[bool] = SimpleQueue()  # one for each call; False ends a thread
        self._threads = [Thread(target=self._work, name=f"serve {n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, priority: int, call: Callable[[], None]) -> None:
        """Run a call in a thread, after those of a higher priority."""
        with self._lock:
            heappush(self._calls, (priority, next(self._numbers), call))
        self._tokens.put(True)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request from its head on."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    def close(self) -> None:
        """Run the calls that are submitted, and end the threads."""
        for _ in self._threads:
            self._tokens.put(False)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while self._tokens.get():
            with self._lock:
                _, _, call = heappop(self._calls)
            call()
