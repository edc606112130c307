"""The life of a program in its process: it can be closed, but not pickled, and it cannot be used after a fork.

Its calls hold locks, and a thread that would wait for itself gets an error.

In a forked process, threads of the parent do not exist, but their locks are held and their calls unfinished, and vendor
libraries lack threads and devices. So any use of the parent's programs is an error there. Their delegates are not freed
either, because their libraries may wait for missing threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock, get_ident
from typing import Any, NoReturn
from weakref import WeakSet

from delegate.errors import DelegateError, ExecutionError, ProgramError


def closing_error() -> ProgramError:
    """Return the error for any use of a closed program."""
    return ProgramError("the program is closed", remedy="load it again")


def fork_error() -> ExecutionError:
    """Return the error for any use of a program in a process that was forked from the one that loaded it."""
    what = "the program was loaded before this process was forked"
    return ExecutionError(what, remedy="load it in this process, which `spawn` and `forkserver` start without a fork")


class Rejecting:
    """A replacement for the executor, the input checker or the lock of a method: any use raises an error."""

    def __init__(self, error: Callable[[], DelegateError]) -> None:
        self._error = error

    def run(self, *args: object) -> NoReturn:
        """Raise the error."""
        raise self._error()

    execute = arrays = hold = refuse_reentry = run


CLOSED, FORKED = Rejecting(closing_error), Rejecting(fork_error)


class NotPicklable:
    """A base of objects that are bound to memory and delegates of this process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it holds memory and delegates of this process; "
            "load the program's file in the other process, or create another context"
        )


PROGRAMS = WeakSet[Any]()  # objects that a fork makes unusable, with a method `leave_to_parent`


def _leave_to_parent() -> None:
    for program in list(PROGRAMS):
        program.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def leak(value: object) -> None:
    """Keep an object alive until the end of the process and beyond."""
    import ctypes  # not needed by most processes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


class ReentryError(ExecutionError):
    """A call uses again what it is using."""


class CallLock:
    """A lock that is held while code of the user may run: listeners, kernels, signal handlers, `__del__`.

    If such code needs the lock again, its thread would wait for itself, which raises an error. Other threads wait.

    Every call pays for its locks, so there the lines of `hold` stand in place of a call to it, which takes longer
    than they do. A signal handler may run between any two of them. It may take the lock before there is an owner and
    after that, since the thread may take it twice, and the call uses nothing then.

    Args:
        what: what a call uses, for messages.

    Attributes:
        lock: the lock itself.
        owner: the thread that holds it; 0: none.
    """

    __slots__ = ("lock", "owner", "what")

    def __init__(self, what: str) -> None:
        self.lock, self.owner, self.what = RLock(), 0, what

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock in a `with` block; raise as `refuse_reentry`."""
        if self.owner:
            self.refuse_reentry()
        with self.lock:
            self.owner = get_ident()
            try:
                yield
            finally:
                self.owner = 0

    def refuse_reentry(self) -> None:
        """Raise ExecutionError if this thread holds the lock."""
        if self.owner == get_ident():
            what = f"{self.what} is used by a listener, kernel, signal handler or __del__ in a call that is using it"
            remedy = "use it when the call has returned: let a handler set a flag; listeners can use another context"
            raise ReentryError(what, remedy=remedy)


def hold(lock: CallLock | None) -> AbstractContextManager[None]:
    """Return a context manager that holds a lock; one that does nothing for None."""
    return nullcontext() if lock is None else lock.hold()


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it comes from, each once: an error that is raised again may be its own cause."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_reentry(error: BaseException | None) -> bool:
    """Return True if an error is due to code of the user that used again what its call was using."""
    return any(isinstance(cause, ReentryError) for cause in error_chain(error))
