"""Signals during calls of libraries: what a signal handler raises is not a failure of the code that it interrupts.

Native code turns KeyboardInterrupt into an error of its own. A module in C++ that imports others reports each failure
as "initialization failed". Code that catches ImportError would then say that the library is absent, and go on.
A handler of the program may raise any error, such as TimeoutError, wherever Python is.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any


@contextmanager
def interruptible() -> Iterator[None]:
    """Return a context at whose end KeyboardInterrupt is raised if one came, whatever a library has made of it.

    So is what another signal handler of the program raised, if the library's error comes from it. Handlers run in the
    main thread alone.
    """
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
        raise_handler_error(error)
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is watch:  # else the library has set a handler of its own
            signal.signal(signal.SIGINT, previous)
    if watch.was_interrupted:
        raise KeyboardInterrupt


def raise_handler_error(error: BaseException) -> None:
    """Raise what a signal handler of the program raised, if that is an error or what it comes from."""
    if (raised := _handler_error(error)) is not None:
        raise raised from None


def _handler_error(error: BaseException) -> BaseException | None:
    if threading.current_thread() is not threading.main_thread():
        return None  # handlers run in the main thread alone
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    for cause in error_chain(error):
        if any(frame.f_code in codes for frame, _ in traceback.walk_tb(cause.__traceback__)):
            return cause
    return None


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it comes from, each once: an error that is raised again may be its own cause."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _code(handler: Any) -> CodeType | None:
    """Return the code that a handler runs: a function, a method, a partial function or another object."""
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)  # of a method
    function = function if hasattr(function, "__code__") else type(handler).__call__
    return getattr(function, "__code__", None)


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
