"""A pipe that binds the life of a child process to its parent's: its end is noticed by the kernel, not by Python.

`PR_SET_PDEATHSIG` would do less: it follows the thread that started the child, which may end long before its process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

_HELD: set[int] = set()  # descriptors of lifelines of this process


class Lifeline:
    """The parent's end of the pipe.

    Raises:
        OSError: no descriptors are left.

    Attributes:
        child_end: the descriptor that the child gets; closed here by `handed_over`.
    """

    def __init__(self) -> None:
        self.child_end, self._own = os.pipe()
        _HELD.add(self._own)

    def handed_over(self) -> None:
        """Close the child's end here, when the child has been started or could not be."""
        os.close(self.child_end)

    def close(self) -> None:
        """End the child, if it lives. A forked process has closed its copy already."""
        if self._own in _HELD:
            _HELD.remove(self._own)
            os.close(self._own)


def end_with_parent(child_end: int) -> None:
    """Have this process end when its parent does, also while a library hangs or holds Python's lock.

    On Linux the kernel kills this process, and its process group if it leads one. Elsewhere a thread ends it.

    Args:
        child_end: the descriptor of a `Lifeline`.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows, where no descriptors are handed over
        return
    if hasattr(fcntl, "F_SETSIG"):
        leads = os.getpgrp() == os.getpid()
        fcntl.fcntl(child_end, fcntl.F_SETOWN, -os.getpid() if leads else os.getpid())
        fcntl.fcntl(child_end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(child_end, fcntl.F_SETFL, fcntl.fcntl(child_end, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=_wait_for_end, args=(child_end,), daemon=True).start()
    hung_up = select.poll()
    hung_up.register(child_end, 0)
    if hung_up.poll(0):  # the parent ended before the kernel was told
        os._exit(1)


def _wait_for_end(child_end: int) -> None:
    with contextlib.suppress(OSError):
        os.read(child_end, 1)
    os._exit(1)


def _close_in_fork() -> None:
    """A forked process is no parent of these children: its copies would keep them alive."""
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)
