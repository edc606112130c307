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
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, TypeVar

from delegate.processes.limits import Clock
from delegate.program.segments import align

T = TypeVar("T")

_LENGTH = struct.Struct("=Q")
_TICK = struct.pack("@ll", 0, 100_000)  # a tenth of a second, as setsockopt takes it; see `Channel._wait`
_MAX_MESSAGE = 1 << 26  # bytes: JSON alone, since large data goes by file
_MAX_READ = 1 << 16  # bytes at a time
_MAX_FILES = 2  # of a message


class Channel:
    """One end of a connection.

    Args:
        end: a connected stream socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end, self._unread = end, b""
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
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, clock))
        if length > _MAX_MESSAGE:
            raise ValueError(f"a message of {length} bytes")
        return json.loads(self._read(length, clock))

    def receive_with_files(self, clock: Clock | None = None) -> tuple[Any, list[int]]:
        """Return the next message, which the other end sends after the last answer, and descriptors of its files.

        Raises:
            OSError, EOFError, ValueError: see `receive`.
        """
        self._unread, files, _, _ = self._wait(lambda: socket.recv_fds(self._end, _MAX_READ, _MAX_FILES), clock)
        if not self._unread:
            raise _connection_error()
        return self.receive(clock), files

    def close(self) -> None:
        """Close this end; the other one reads the end of the stream."""
        self._end.close()

    def _read(self, length: int, clock: Clock | None) -> bytes:
        """Return so many bytes, of which some may have been received with earlier ones."""
        parts, missing = [self._unread], length - len(self._unread)
        while missing > 0:
            parts.append(self._wait(lambda: self._end.recv(_MAX_READ), clock))
            missing -= len(parts[-1])
            if not parts[-1]:
                raise _connection_error()
        data = b"".join(parts)
        self._unread = data[length:]
        return data[:length]

    def _wait(self, receive: Callable[[], T], clock: Clock | None) -> T:
        """Return what is received. An interrupt right before the wait does not end it; it is noticed a tick later."""
        while True:
            try:
                return receive()
            except BlockingIOError:
                if clock is not None and clock.left <= 0:
                    raise TimeoutError from None


def _connection_error() -> EOFError:
    return EOFError("the other process closed the connection")


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
