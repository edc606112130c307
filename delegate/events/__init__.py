"""Listeners: functions that receive the events of lowering, loading and running; their classes are in `events`.

`listen` adds a listener to the lowering and loading of a `with` block, `Context.listen` to the runs of a context,
and without a listener no event is created.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import TYPE_CHECKING, Any

from delegate.errors import ListenerError
from delegate.plugins import one_line

if TYPE_CHECKING:
    from delegate.events.kinds import Event

Listener = Callable[["Event"], object]


class Subscription:
    """A listener in a `with` block.

    A listener that raises changes no result: it gets no more events, and the end of its block raises ListenerError.
    """

    __slots__ = ("_failure", "_listener")

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._failure: tuple[Exception | SystemExit, str] | None = None

    def __call__(self, event: Event) -> None:
        """Send an event to the listener, unless it has failed."""
        if self._failure is None:
            try:
                self._listener(event)
            except (Exception, SystemExit) as error:
                self._failure = error, type(event).__name__

    def require_working(self) -> None:
        """Raise ListenerError if the listener has failed."""
        if self._failure is not None:
            error, event = self._failure
            name = getattr(self._listener, "__qualname__", type(self._listener).__qualname__)
            remedy = "results are valid, but the listener missed events: fix the listener"
            raise ListenerError(f"listener {name} failed: {one_line(error)}", where=event, remedy=remedy) from error


class SerialCalls:
    """Calls functions one after another, for any thread, such as those that write an event.

    During such a call a signal handler or a `__del__` may run in its thread, and cause another call. That comes next,
    since the thread cannot wait for itself.
    """

    def __init__(self) -> None:
        self._waiting = deque[tuple[Callable[..., object], tuple[Any, ...]]]()
        self._lock, self._is_busy = RLock(), False

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function now, or after the call that this thread is in."""
        self._waiting.append((function, args))
        while True:
            with self._lock:  # for a call that another thread has begun
                if self._is_busy:
                    return
                self._is_busy = True
                try:
                    while self._waiting:
                        function, args = self._waiting.popleft()
                        function(*args)
                finally:
                    self._is_busy = False
            if not self._waiting:  # else a handler has added one after the last look
                return


_LISTENING: ContextVar[tuple[Subscription, ...]] = ContextVar("listeners", default=())


@contextmanager
def subscribe(listener: Listener) -> Iterator[Subscription]:
    """Yield the subscription of a listener; raise ListenerError at the end if the listener has failed."""
    subscription = Subscription(listener)
    yield subscription
    subscription.require_working()


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Send the events of lowering and loading in this thread to a listener, inside a `with` block.

    Example::

        with delegate.listen(print):
            program = delegate.to_backend(exported, "xnnpack")

    Several listeners may be active; each receives all events of its block. Runs are in `Context.listen`.

    Args:
        listener: receives each event; see `delegate.events.kinds`.

    Raises:
        ListenerError: the listener has raised an exception.
    """
    with subscribe(listener) as subscription:
        token = _LISTENING.set((*_LISTENING.get(), subscription))
        try:
            yield
        finally:
            _LISTENING.reset(token)


def is_heard() -> bool:
    """Return True if events of lowering and loading have a listener."""
    return bool(_LISTENING.get())


@contextmanager
def stage(name: str, method: str = "") -> Iterator[None]:
    """Send a `StageRun` at the end of a `with` block without an error."""
    start = time.perf_counter_ns()
    yield
    if is_heard():
        from delegate.events.kinds import StageRun

        emit(StageRun(name, method, start, time.perf_counter_ns() - start))


def emit(event: Event) -> None:
    """Send an event of lowering or loading to all listeners."""
    for subscription in _LISTENING.get():
        subscription(event)
