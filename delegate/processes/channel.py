"""Messages between two processes, and memory that they share.

A message is its length, then JSON. Files are sent with the length. The reader trusts no length and no content.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Sequence
from typing import Any, BinaryIO

from delegate.processes.limits import Clock
from delegate.program.segments import align

_LENGTH = struct.Struct("=Q")
_TICK = struct.pack("@ll", 0, 100_000)  # a tenth of a second, as setsockopt takes it; see `Channel._receive_some`
_MAX_MESSAGE = 1 << 26  # bytes: JSON alone, since large data goes by file
_MAX_FILES = 2  # of a message


class Channel:
    """One end of a connection.

    Args:
        end: a connected stream socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TICK)

    def send(self, message: Any, files: Sequence[int] = ()) -> None:
        """Send a JSON value, and files by descriptor; raise OSError if the other end is closed."""
        body = json.dumps(message).encode()
        head = _LENGTH.pack(len(body))
        if files:
            socket.send_fds(self._end, [head], files)
            self._end.sendall(body)
        else:
            self._end.sendall(head + body)

    def receive(self, clock: Clock | None = None) -> Any:
        """Return the next message.

        Raises:
            TimeoutError: the time of the clock is up.
            ConnectionResetError: the other end was closed before it read a message.
            EOFError: the other end was closed.
            ValueError, RecursionError: the message is invalid.
        """
        return self._receive_body(self._receive_exactly(_LENGTH.size, clock), clock)

    def receive_with_files(self, clock: Clock | None = None) -> tuple[Any, list[int]]:
        """Return the next message, and descriptors of the files that came with it; raises as `receive`."""
        while True:
            try:
                head, files, _, _ = socket.recv_fds(self._end, _LENGTH.size, _MAX_FILES)
                break
            except BlockingIOError:
                _require_time(clock)
        rest = self._receive_exactly(_LENGTH.size - len(head), clock)
        return self._receive_body(head + rest, clock), files

    def close(self) -> None:
        """Close this end; the other one reads the end of the stream."""
        self._end.close()

    def _receive_body(self, head: bytes, clock: Clock | None) -> Any:
        (length,) = _LENGTH.unpack(head)
        if length > _MAX_MESSAGE:
            raise ValueError(f"a message of {length} bytes")
        return json.loads(self._receive_exactly(length, clock))

    def _receive_exactly(self, length: int, clock: Clock | None) -> bytes:
        parts = []
        while length:
            part = self._receive_some(min(length, 1 << 20), clock)
            if not part:
                raise EOFError("the other process closed the connection")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _receive_some(self, most: int, clock: Clock | None) -> bytes:
        """Return the next bytes. An interrupt right before the wait does not end it; it is noticed a tick later."""
        while True:
            try:
                return self._end.recv(most)
            except BlockingIOError:
                _require_time(clock)


def _require_time(clock: Clock | None) -> None:
    if clock is not None and clock.left <= 0:
        raise TimeoutError


def open_shared_file(size: int) -> BinaryIO:
    """Return a file in memory without a name, which is freed with the last process that holds it."""
    if not hasattr(os, "memfd_create"):
        file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        file.truncate(size)
        return file  # type: ignore[no-any-return]
    import fcntl

    file = open(os.memfd_create("delegate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b")  # noqa: SIM115
    file.truncate(size)
    # Truncating a file that another process has mapped kills that process (SIGBUS).
    fcntl.fcntl(file.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return file  # type: ignore[no-any-return]


def share(parts: Sequence[bytes | memoryview]) -> BinaryIO:
    """Return a file in memory that holds these parts, each from a multiple of the alignment on."""
    sizes = [memoryview(part).nbytes for part in parts]
    file = open_shared_file(sum(map(align, sizes)))
    for start, part in zip(_starts(sizes), parts, strict=False):
        file.seek(start)
        file.write(part)
    file.flush()
    return file


def map_shared(file: int, sizes: Sequence[int], access: int) -> list[memoryview]:
    """Return the parts of a file of `share`, which is closed.

    Args:
        file: its descriptor.
        sizes: bytes of each part.
        access: `mmap.ACCESS_READ`, or `mmap.ACCESS_COPY` for parts that this process may change for itself.
    """
    try:
        content = memoryview(mmap.mmap(file, 0, access=access)) if sum(sizes) else memoryview(b"")
    finally:
        os.close(file)
    return [content[start : start + size] for start, size in zip(_starts(sizes), sizes, strict=False)]


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(map(align, sizes))]
