"""The life of a program in its process: it can be closed, but not pickled, and it cannot be used after a fork.

In a forked process, threads of the parent do not exist, but their locks are held and their calls unfinished, and vendor
libraries lack threads and devices. So any use of the parent's programs is an error there. Their delegates are not freed
either, because their libraries may wait for missing threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn, Protocol
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


class ForkAware(Protocol):
    """An object that a fork makes unusable: a program."""

    def leave_to_parent(self) -> None:
        """Reject all calls; called in the forked process before anything else there."""


PROGRAMS = WeakSet[ForkAware]()


def _leave_to_parent() -> None:
    for program in list(PROGRAMS):
        program.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def leak(value: object) -> None:
    """Keep an object alive until the end of the process and beyond."""
    import ctypes  # not needed by most processes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
