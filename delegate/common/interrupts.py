"""Interrupts during calls of libraries: they are not a failure of the code that they interrupt.

Native code turns KeyboardInterrupt into an error of its own. A module in C++ that imports others reports each failure
as "initialization failed". Code that catches ImportError would then say that the library is absent, and go on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[None]:
    """Return a context at whose end KeyboardInterrupt is raised if one came, whatever a library has made of it."""
    previous: Any = None
    if threading.current_thread() is threading.main_thread():
        previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):  # another thread, or the program ignores interrupts
        yield
        return
    watch = _Watch(previous)
    signal.signal(signal.SIGINT, watch)
    try:
        yield
    except BaseException as error:
        if watch.was_interrupted and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is watch:  # else the library has set a handler of its own
            signal.signal(signal.SIGINT, previous)
    if watch.was_interrupted:
        raise KeyboardInterrupt


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it comes from, each once: an error that is raised again may be its own cause."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class _Watch:
    """A handler of SIGINT that records whether another one raises KeyboardInterrupt."""

    def __init__(self, handler: Callable[..., object]) -> None:
        self._handler = handler
        self.was_interrupted = False

    def __call__(self, *arguments: Any) -> None:
        try:
            self._handler(*arguments)
        except KeyboardInterrupt:
            self.was_interrupted = True
            raise
