"""Threads that help with branches which may run at the same time: started when they are wanted, a few for a program.

Whoever has branches to run works on them itself and only waits for helpers that are at work on one: where none comes
it runs all of them. So nothing waits for a thread that is not there, whoever calls, from however many threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import finalize

from delegate.program.task import cores

if TYPE_CHECKING:
    from queue import SimpleQueue

Help = Callable[[], None]  # what a helper is to do; it raises nothing


class Workers:
    """The helpers of one program, whose contexts share them. They end with it.

    Args:
        most: how many there may be; None for one less than there are cores, for who asks works too.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = max(cores() - 1, 1) if most is None else most
        self._crew: _Crew | None = None
        self._lock = threading.Lock()

    def offer(self, help_: Help, count: int) -> None:
        """Have up to so many helpers, those that are idle or can be started, call a function; come back at once."""
        with self._lock:
            if self._crew is None:
                self._crew = _Crew(self._most)
                # not at the end of the process: its locks may be held by threads that are gone, after a fork
                finalize(self, self._crew.close).atexit = False
            crew = self._crew
        crew.offer(help_, count)

    def close(self) -> None:
        """Have the helpers end, once they are done with what they do; none is started any more."""
        with self._lock:
            crew, self._crew, self._most = self._crew, None, 0
        if crew is not None:
            crew.close()


class _Crew:
    """The threads: they hold on to this, and not to the program whose they are."""

    def __init__(self, most: int) -> None:
        from queue import SimpleQueue  # most programs do without it

        self._most, self._threads, self._idle = most, 0, 0
        self._queue: SimpleQueue[Help | None] = SimpleQueue()
        self._lock = threading.Lock()

    def offer(self, help_: Help, count: int) -> None:
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
            except RuntimeError:  # the system gives no more threads: there is less help
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
            help_ = None  # what it holds is free while this thread waits
            with self._lock:
                self._idle += 1
            help_ = self._queue.get()
