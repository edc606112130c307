"""Pool: the threads that run the calls of all models, in the order of their priorities."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from heapq import heappop, heappush
from queue import SimpleQueue
from threading import Lock, Thread


class Counted:
    """Counts the requests in its `with` blocks, which may overlap."""

    def __init__(self) -> None:
        self.requests = 0

    def __enter__(self) -> None:
        self.requests += 1

    def __exit__(self, *_: object) -> None:
        self.requests -= 1


class _Own(threading.local):
    """The calls that this thread runs before it waits; None in other threads."""

    calls: int | None = None


class Pool:
    """Threads for the calls of all models. A smaller number is a higher priority; equal ones keep their order.

    Args:
        threads: calls that run at once.
    """

    def __init__(self, threads: int) -> None:
        self._counted = Counted()
        self._calls: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._lock = Lock()
        self._own = _Own()
        self._unfinished = 0  # calls
        self._tokens: SimpleQueue[bool] = SimpleQueue()  # one for each call; False ends a thread
        self._threads: list[Thread] = []
        for _ in range(threads):
            self.add_thread()

    def add_thread(self) -> None:
        """Start one more thread, as the replacement for one whose call returns True when it ends."""
        thread = Thread(target=self._work, name="serve", daemon=True)
        self._threads = [*filter(Thread.is_alive, self._threads), thread]
        thread.start()

    def submit(self, priority: int, call: Callable[[], object]) -> None:
        """Run a call in a thread, after calls of a higher priority. The thread ends with the call if that returns True.

        A thread of the pool that submits one runs the next call itself, when it has ended its own: that wakes no other.
        """
        with self._lock:
            self._unfinished += 1
            heappush(self._calls, (priority, next(self._numbers), call))
        if self._own.calls is None:
            self._tokens.put(True)
        else:
            self._own.calls += 1

    @property
    def requests(self) -> int:
        """The number of all models' requests that are received, wait or run now."""
        return self._counted.requests

    @property
    def has_calls(self) -> bool:
        """Return True if a call waits or runs, also one whose client does not wait any more."""
        return self._unfinished > 0

    def request(self) -> Counted:
        """Return a context manager that counts a request, from its head on."""
        return self._counted

    def close(self) -> None:
        """Run the calls that are submitted, and end the threads."""
        for _ in self._threads:
            self._tokens.put(False)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while self._tokens.get():
            self._own.calls = 1
            while self._own.calls:
                self._own.calls -= 1
                with self._lock:
                    _, _, call = heappop(self._calls)
                is_replaced = call() is True
                del call  # else a thread that waits keeps the memory of a program that is closed
                with self._lock:
                    self._unfinished -= 1
                if is_replaced:
                    for _ in range(self._own.calls):
                        self._tokens.put(True)
                    return
            self._own.calls = None
