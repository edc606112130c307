"""Communication between a program and the process of its delegates: messages on a socket, tensors in shared memory.

A message is its length, then JSON. An empty message means "run once more", or "success". Files are sent with the
length.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from delegate.program.raw import array_over
from delegate.program.segments import align
from delegate.runtime.backend import Array, TensorType

CLOSE = "close"  # the last request of a delegate
_LENGTH = struct.Struct("=Q")
_RECEIVE_TIMEOUT = struct.pack("@ll", 1, 0)  # a second, as setsockopt takes it; see `Channel._received`
_LARGEST_ANSWER = 1 << 16  # bytes; the program's process reads no more of a worker's answer


class Channel:
    """One end of a connection. A request is answered before the next one is sent.

    Args:
        end: a connected stream socket.
        largest: the maximum bytes of a message; None: any number.

    Attributes:
        limit: seconds to wait for a message; None: no limit.
        awaited: the number of pending answers, counted by the caller; more than 0 after an interrupt.
    """

    def __init__(self, end: socket.socket, largest: int | None = None) -> None:
        self._end, self._largest = end, largest
        self.limit: float | None = None
        self.awaited = 0

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return the program's end, and the worker's socket."""
        own, other = socket.socketpair()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_TIMEOUT)
        return cls(own, _LARGEST_ANSWER), other

    def send(self, message: Any = None, files: Sequence[int] = ()) -> None:
        """Send a JSON value, None as an empty message, and files by descriptor; raise OSError if the other end is
        closed.
        """
        body = b"" if message is None else json.dumps(message).encode()
        head = _LENGTH.pack(len(body))
        if files:
            socket.send_fds(self._end, [head], files)
            self._end.sendall(body)
        else:
            self._end.sendall(head + body)

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            ConnectionResetError: the other end was closed before it read a message.
            EOFError: the other end was closed.
            ValueError: the message is invalid.
        """
        return self._body(self._exactly(_LENGTH.size, self._received(_LENGTH.size)))

    def receive_with_files(self) -> tuple[Any, list[int]]:
        """Return the next message, and descriptors of the files that came with it."""
        head, files, _, _ = socket.recv_fds(self._end, _LENGTH.size, 2)
        return self._body(self._exactly(_LENGTH.size, head)), files

    def wait_at_most(self, seconds: float | None) -> None:
        """Raise TimeoutError from now on if a message takes longer; None: wait without limit."""
        self.limit = seconds
        self._end.settimeout(seconds)

    def close(self) -> None:
        """Close this end; the other one reads the end of the stream."""
        self._end.close()

    def __del__(self) -> None:
        self._end.close()

    def _body(self, head: bytes) -> Any:
        (length,) = _LENGTH.unpack(head)
        if self._largest is not None and length > self._largest:
            raise ValueError(f"a message of {length} bytes")
        return json.loads(self._exactly(length)) if length else None

    def _received(self, most: int) -> bytes:
        """Return the next bytes. An interrupt right before the wait does not end it; it is noticed a second later."""
        while True:
            with suppress(BlockingIOError):
                return self._end.recv(most)

    def _exactly(self, length: int, data: bytes = b"") -> bytes:
        parts, missing = [data], length - len(data)
        while missing:
            part = self._received(min(missing, 1 << 20))
            if not part:
                raise EOFError("the other process closed the connection")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def shared_file(size: int) -> int:
    """Return the descriptor of a file in memory without a name, which is freed with its last process."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("delegate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.truncate(descriptor, size)
        if hasattr(
            fcntl, "F_ADD_SEALS"
        ):  # truncating a file that another process has mapped kills that process (SIGBUS)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Tensors:
    """The inputs and outputs of a delegate, one after another in shared memory.

    Args:
        types: The inputs' types, followed by the outputs'.
    """

    def __init__(self, types: Sequence[TensorType]) -> None:
        self.types, self.offsets, end = tuple(types), list[int](), 0
        for shape, dtype in types:
            self.offsets.append(end)
            end = align(end + dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
        self.size = max(end, mmap.PAGESIZE)

    def arrays(self, memory: mmap.mmap) -> list[Array]:
        """Return them as arrays over that memory."""
        places = zip(self.types, self.offsets, strict=True)
        return [array_over(memory, dtype, shape, offset) for (shape, dtype), offset in places]

    def to_json(self) -> list[Any]:
        """Return them as plain JSON."""
        return [[list(shape), dtype.str] for shape, dtype in self.types]

    @classmethod
    def from_json(cls, rows: list[Any]) -> Tensors:
        """Return the tensors of a `to_json` result."""
        return cls([TensorType(tuple(shape), np.dtype(name)) for shape, name in rows])
