"""The lock of a call, which is an error where the thread that holds it would wait for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock, get_ident

from delegate.common.interrupts import error_chain
from delegate.errors import ExecutionError


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


def is_reentry(error: BaseException | None) -> bool:
    """Return True if an error is due to code of the user that used again what its call was using."""
    return any(isinstance(cause, ReentryError) for cause in error_chain(error))
