"""Programs in a process that was forked from theirs.

Threads of the parent are gone there, with the locks that they held and the calls that they were in, and vendor
libraries miss threads and devices of their own. So locks are new, and delegates are made anew by the first call; those
of the parent are neither run nor freed, for their libraries may wait for threads that are not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

from delegate.errors import ExecutionError


class FollowsForks(Protocol):
    """What has to know that its process was forked: a program."""

    def follow_fork(self) -> None:
        """Called in the forked process, before anything else there."""


_PROGRAMS = WeakSet[FollowsForks]()


def watch(program: FollowsForks) -> None:
    """Have a program follow from now on where its process is forked."""
    _PROGRAMS.add(program)


def _follow() -> None:
    for program in list(_PROGRAMS):
        program.follow_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_follow)


def leak(value: object) -> None:
    """Have something never be freed, not even at the end of the process."""
    import ctypes  # few processes fork

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def torn_states_error() -> ExecutionError:
    """The error where a call was writing states while the process was forked."""
    return ExecutionError(
        "another thread was in a call when this process was forked, and its states may be written in part",
        remedy="reset() them, or restore() a snapshot; or fork between calls",
    )


class Forked:
    """Stands for the input checker of a method until its first call has it bound in this process.

    Args:
        make_ready: binds the method in this process, which gives it another checker.
        check: of the method.
    """

    def __init__(self, make_ready: Callable[[], None], check: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self._make_ready, self._check = make_ready, check

    def arrays(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Bind the method, and check its inputs."""
        self._make_ready()
        return self._check(leaves)

    def symbols(self, arrays: Sequence[Any]) -> NoReturn:
        """Never called: `arrays` comes first."""
        raise AssertionError
