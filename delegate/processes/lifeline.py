"""A pipe that ends a process with its parent, which holds the other end. The kernel notices that the pipe is closed.

`PR_SET_PDEATHSIG` is not enough: it follows the thread that started the process, which may end before its own process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading


def end_with_parent(end: int) -> None:
    """End this process when its parent ends, even while a library hangs or holds Python's lock.

    On Linux the kernel kills this process, and its process group if it leads one, while elsewhere a thread ends it.

    Args:
        end: the descriptor of the pipe's reading end.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows, where no descriptors are handed over
        return
    if hasattr(fcntl, "F_SETSIG"):
        leads = os.getpgrp() == os.getpid()
        fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpid() if leads else os.getpid())
        fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=_wait_for_end, args=(end,), daemon=True).start()
    hung_up = select.poll()
    hung_up.register(end, 0)
    if hung_up.poll(0):  # the parent ended before the signal was set up
        os._exit(1)


def _wait_for_end(end: int) -> None:
    with contextlib.suppress(OSError):
        os.read(end, 1)
    os._exit(1)
