"""The life of a program in its process: it can be closed, but not pickled, and it follows forks.

In a forked process, threads of the parent do not exist, but their locks are held and their calls unfinished. Vendor
libraries lack threads and devices. So locks are new, and the first call creates new delegates. Those of the parent are
neither run nor freed, because their libraries may wait for missing threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

from delegate.errors import ExecutionError, ProgramError


def closed_error() -> ProgramError:
    """Return the error for any use of a closed program."""
    return ProgramError("the program is closed", remedy="load it again")


class Closed:
    """A replacement for the executor of a closed method: any call raises ProgramError."""

    def run(self, *args: object) -> NoReturn:
        """Raise ProgramError."""
        raise closed_error()

    execute = arrays = run


class NotPicklable:
    """A base of objects that are bound to memory and delegates of this process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it holds memory and delegates of this process; "
            "load the program's file in the other process, or create another context"
        )


class ForkAware(Protocol):
    """An object that must handle forks of its process: a program."""

    def follow_fork(self) -> None:
        """Handle a fork; called in the forked process before anything else there."""


_PROGRAMS = WeakSet[ForkAware]()


def follow_forks(program: ForkAware) -> None:
    """Call `follow_fork` of a program after every fork of its process."""
    _PROGRAMS.add(program)


def _follow() -> None:
    for program in list(_PROGRAMS):
        program.follow_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_follow)


def leak(value: object) -> None:
    """Keep an object alive until the end of the process and beyond."""
    import ctypes  # not needed by most processes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def torn_states_error() -> ExecutionError:
    """Return the error for states that a call was writing while the process was forked."""
    return ExecutionError(
        "another thread was in a call when this process was forked, so the states may be incomplete",
        remedy="call reset(), or restore() a snapshot; or fork only between calls",
    )


class ForkedChecker:
    """A replacement of a method's input checker that binds the method in this process at its first call.

    Args:
        make_ready: binds the method in this process, which replaces this checker.
        check: of the method.
    """

    def __init__(self, make_ready: Callable[[], None], check: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self._make_ready, self._check = make_ready, check

    def arrays(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Bind the method, and check its inputs."""
        self._make_ready()
        return self._check(leaves)
