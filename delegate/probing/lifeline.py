"""A pipe that ends a child process with its parent. The kernel, not Python, notices that the pipe is closed.

`PR_SET_PDEATHSIG` is not enough: it follows the thread that started the child, which may end before its process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

_OPEN: set[int] = set()  # parent ends of this process's lifelines


class Lifeline:
    """The parent's end of the pipe.

    Raises:
        OSError: no descriptors are left.

    Attributes:
        child_end: the descriptor that the child gets; closed here by `handed_over`.
    """

    def __init__(self) -> None:
        self.child_end, self._parent_end = os.pipe()
        _OPEN.add(self._parent_end)

    def handed_over(self) -> None:
        """Close the child's end in this process, after the child was started or could not be started."""
        os.close(self.child_end)

    def close(self) -> None:
        """End the child if it runs. A forked process has already closed its copy."""
        if self._parent_end in _OPEN:
            _OPEN.remove(self._parent_end)
            os.close(self._parent_end)


def end_with_parent(child_end: int) -> None:
    """End this process when its parent ends, even while a library hangs or holds Python's lock.

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
    if hung_up.poll(0):  # the parent ended before the signal was set up
        os._exit(1)


def _wait_for_end(child_end: int) -> None:
    with contextlib.suppress(OSError):
        os.read(child_end, 1)
    os._exit(1)


def _close_in_fork() -> None:
    """Close the inherited parent ends: in a forked process they would keep the children alive."""
    for descriptor in _OPEN:
        os.close(descriptor)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)
