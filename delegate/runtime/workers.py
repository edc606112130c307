"""Helper threads for parallel branches: started on demand, a few per program.

The caller runs its branches itself, and waits only for helpers that are running one. Without helpers it runs all of
them. So a caller never waits for a missing thread, from however many threads it is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import finalize

from delegate.program.task import cores

if TYPE_CHECKING:
    from queue import SimpleQueue

Help = Callable[[], None]  # the work of a helper; it raises nothing


class Workers:
    """The helpers of one program, whose contexts share them. They end with it.

    Args:
        most: the maximum number; None for one less than the number of cores, because the caller works too.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = max(cores() - 1, 1) if most is None else most
        self._crew: _Crew | None = None
        self._lock = threading.Lock()

    def request_help(self, help_: Help, count: int) -> None:
        """Call a function in up to `count` helpers that are idle or can be started; return immediately."""
        with self._lock:
            if self._crew is None:
                self._crew = _Crew(self._most)
                # not at the end of the process: its locks may be held by threads that are gone, after a fork
                finalize(self, self._crew.close).atexit = False
            crew = self._crew
        crew.request_help(help_, count)

    def close(self) -> None:
        """End the helpers after their current work, and start no more."""
        with self._lock:
            crew, self._crew, self._most = self._crew, None, 0
        if crew is not None:
            crew.close()


class _Crew:
    """The threads. They refer to this object, not to the program."""

    def __init__(self, most: int) -> None:
        from queue import SimpleQueue  # not needed by most programs

        self._most, self._threads, self._idle = most, 0, 0
        self._queue: SimpleQueue[Help | None] = SimpleQueue()
        self._lock = threading.Lock()

    def request_help(self, help_: Help, count: int) -> None:
        with self._lock:
            idle = min(count, self._idle)
            self._idle -= idle
            started = max(min(count - idle, self._most - self._threads), 0)
            self._threads += started
        for _ in range(idle):
            self._queue.put(help_)
        for _ in range(started):
            try:
                threading.Thread(target=self._serve, args=(help_,), name="delegate-branch", daemon=True).start()
            except RuntimeError:  # no more threads: there are fewer helpers
                with self._lock:
                    self._threads -= 1

    def close(self) -> None:
        with self._lock:
            threads, self._most, self._idle = self._threads, 0, 0
        for _ in range(threads):
            self._queue.put(None)

    def _serve(self, help_: Help | None) -> None:
        while help_ is not None:
            help_()
            help_ = None  # free its references while this thread waits
            with self._lock:
                self._idle += 1
            help_ = self._queue.get()
