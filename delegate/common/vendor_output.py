"""A filter for lines that vendors' libraries print and that mean nothing to users; for the command line.

Such libraries write to the file descriptors 1 and 2, past `sys.stdout` and `sys.stderr`. With the filter both lead to a
process that drops the lines which backends declare (`BackendInfo.noise`). It outlives a library that crashes, so it
passes on the last words too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import time
from collections.abc import Iterable
from typing import TextIO

_LEAST = 1.0  # seconds that the end of this process waits for the filter, if another process still prints
_TOKEN = os.urandom(8).hex().encode() + b" "  # starts a line that declares noise; nobody else can write it
_pipes: list[int] = []  # the descriptor of its writing end, if the filter was started


def expect(patterns: Iterable[str]) -> None:
    """Leave out lines that match one of these regular expressions from now on, if the filter was started."""
    for pipe in _pipes:
        for pattern in patterns:
            os.write(pipe, _TOKEN + pattern.encode() + b"\n")


def separate() -> None:
    """Give `sys.stdout` and `sys.stderr` descriptors of their own, and let descriptor 1 lead to stderr.

    What vendors' libraries print is then no result, and `start` can filter it. Both streams must be open.
    """
    sys.stdout, sys.stderr = _move(sys.stdout, 1, buffering=-1), _move(sys.stderr, 2, buffering=1)
    # Python asks this stream for the width of the terminal, and descriptor 1 may become a pipe.
    sys.__stdout__ = sys.stdout  # type: ignore[assignment, misc]
    os.dup2(2, 1)


def _move(stream: TextIO, descriptor: int, buffering: int) -> TextIO:
    """Return the stream on a copy of its descriptor."""
    stream.flush()
    # Open as long as the process: closefd=False keeps Python from warning of that at its end.
    return open(os.dup(descriptor), "w", buffering, encoding=stream.encoding, errors=stream.errors, closefd=False)


def start() -> None:
    """Filter what this process and its children write to the descriptors 1 and 2. Call it before any thread starts."""
    if not hasattr(os, "fork"):
        return
    stderr = os.dup(2)
    source, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()  # interrupts at the terminal are not for it
        os.close(pipe)
        _filter(source, stderr)
        os._exit(0)
    os.close(source)
    for descriptor in (1, 2):
        os.dup2(pipe, descriptor)
    _pipes.append(pipe)
    atexit.register(_finish, child, stderr)


def _filter(source: int, target: int) -> None:
    """Pass on all lines but noise until the last writer has closed the pipe."""
    noise: list[re.Pattern[bytes]] = []
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            before, token, pattern = line.partition(_TOKEN)
            if token:
                noise.append(re.compile(pattern.strip()))
            if not any(p.fullmatch(before.strip()) for p in noise):
                with contextlib.suppress(OSError):  # it is closed, but a process that prints must not wait
                    os.write(target, before)


def _finish(child: int, stderr: int) -> None:
    """Wait until the filter has passed on all lines: the end of a command is the end of its output."""
    if (ctypes := sys.modules.get("ctypes")) is not None:
        ctypes.CDLL(None).fflush(None)  # what C libraries still hold
    for descriptor in (1, 2):
        os.dup2(stderr, descriptor)
    os.close(_pipes.pop())
    end = time.monotonic() + _LEAST
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < end:
            time.sleep(0.001)
