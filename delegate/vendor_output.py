"""A filter for lines that vendors' libraries print and that mean nothing to users.

Such libraries write to the file descriptors 1 and 2, past `sys.stdout` and `sys.stderr`. In a process that started the
filter both lead to a pipe. A small process reads the pipe and drops the lines that backends declare as noise
(`BackendInfo.noise`). It passes all else on to stderr at once, so the last lines of a library that crashes arrive too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterable
from typing import TextIO

_PARTIAL = 0.1  # seconds until the start of a line is passed on, such as a question or a bar of progress
_LEAST = 1.0  # seconds that the end of this process waits for the filter, if another process still prints
_IGNORED = (signal.SIGINT, signal.SIGTERM)  # the filter ends after the last process that prints

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
    sys.stdout, sys.stderr = _own(sys.stdout, 1, buffering=-1), _own(sys.stderr, 2, buffering=1)
    # Python asks this stream for the width of the terminal, and descriptor 1 may become a pipe.
    sys.__stdout__ = sys.stdout  # type: ignore[assignment, misc]
    os.dup2(2, 1)


def _own(stream: TextIO, descriptor: int, buffering: int) -> TextIO:
    """Return the stream on a copy of its descriptor."""
    stream.flush()
    # Open as long as the process: closefd=False keeps Python from warning of that at its end.
    return open(os.dup(descriptor), "w", buffering, encoding=stream.encoding, errors=stream.errors, closefd=False)


def start() -> None:
    """Filter what this process and its children write to the descriptors 1 and 2; without `fork` do nothing.

    Call it before any thread starts.
    """
    if not hasattr(os, "fork"):
        return
    try:
        stderr = os.dup(2)
        source, pipe = os.pipe()
        child = os.fork()
    except OSError:  # no descriptor or process is left
        return
    if child == 0:
        try:
            _run(source, stderr)
        finally:
            os._exit(0)
    os.close(source)
    os.dup2(pipe, 1)
    os.dup2(pipe, 2)
    _pipes.append(pipe)
    atexit.register(_finish, child, stderr)


def _finish(child: int, stderr: int) -> None:
    """Wait until the filter has passed on all lines: the end of a command is the end of its output."""
    if (ctypes := sys.modules.get("ctypes")) is not None and os.name == "posix":
        ctypes.CDLL(None).fflush(None)  # what C libraries still hold
    os.dup2(stderr, 1)
    os.dup2(stderr, 2)
    os.close(_pipes.pop())
    end = time.monotonic() + _LEAST
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < end:
            time.sleep(0.001)


def _run(source: int, target: int) -> None:
    """Pass on all lines but noise until the last writer has closed the pipe."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.dup2(source, 0)
    os.dup2(target, 2)
    os.dup2(target, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    noise: list[re.Pattern[bytes]] = []
    held, is_inside = b"", False  # the start of a line; whether the start of the present line was passed on
    while True:
        if not select.select([0], [], [], _PARTIAL if held else None)[0]:
            _write(held)
            held, is_inside = b"", True
            continue
        part = os.read(0, 65536)
        *lines, held = (held + part).split(b"\n")
        for line in lines:
            before, token, pattern = line.partition(_TOKEN)
            if token:
                noise.append(re.compile(pattern))
                _write(before)
                is_inside = is_inside or bool(before)
                continue
            if is_inside or not any(p.fullmatch(line.strip()) for p in noise):
                _write(line + b"\n")
            is_inside = False
        if not part:
            _write(held)
            return


def _write(text: bytes) -> None:
    """Write to stderr; if that is closed, go on, since a process that prints would fail or wait."""
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(2, text) :]
