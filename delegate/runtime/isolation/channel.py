"""What passes between a program and the process of its delegates: messages over a socket, tensors in shared memory.

A message is its length, then JSON; nothing at all is "run once more", and "that went well". Files go with the length.
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

from delegate.program.memory_plan import align
from delegate.program.raw import array_over
from delegate.runtime.backend import Array, TensorType

CLOSE = "close"  # the last request of a delegate
_LENGTH = struct.Struct("=Q")
_LISTENED = struct.pack("@ll", 1, 0)  # a second, as setsockopt takes it; see `Channel._received`
_LARGEST_ANSWER = 1 << 16  # bytes; the program's process reads no more of what a worker says


class Channel:
    """One end of a connection. A request is answered before the next one is sent.

    Args:
        end: a connected stream socket.
        largest: bytes of a message that are taken; None: any number.

    Attributes:
        limit: seconds after which what is received is late; None: never.
        awaited: answers that have not come, counted by who asks; more than 0 after an interrupt.
    """

    def __init__(self, end: socket.socket, largest: int | None = None) -> None:
        self._end, self._largest = end, largest
        self.limit: float | None = None
        self.awaited = 0

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """The program's end, and the socket that is the worker's."""
        own, other = socket.socketpair()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LISTENED)
        return cls(own, _LARGEST_ANSWER), other

    def send(self, message: Any = None, files: Sequence[int] = ()) -> None:
        """Send a value of JSON, None as nothing, and files by descriptor; raises OSError where nobody listens."""
        body = b"" if message is None else json.dumps(message).encode()
        head = _LENGTH.pack(len(body))
        if files:
            socket.send_fds(self._end, [head], files)
            self._end.sendall(body)
        else:
            self._end.sendall(head + body)

    def receive(self) -> Any:
        """The next message.

        Raises:
            ConnectionResetError: the other end was closed with what was sent to it unread.
            EOFError: the other end was closed.
            ValueError: the message makes no sense.
        """
        return self._body(self._exactly(_LENGTH.size, self._received(_LENGTH.size)))

    def receive_with_files(self) -> tuple[Any, list[int]]:
        """The next message, and descriptors of the files that came with it."""
        head, files, _, _ = socket.recv_fds(self._end, _LENGTH.size, 2)
        return self._body(self._exactly(_LENGTH.size, head)), files

    def wait_at_most(self, seconds: float | None) -> None:
        """What is received later than that is a TimeoutError; None: as late as it likes."""
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
        """What comes next. An interrupt right before the wait does not end it: it is noticed a second later."""
        while True:
            with suppress(BlockingIOError):
                return self._end.recv(most)

    def _exactly(self, length: int, data: bytes = b"") -> bytes:
        parts, missing = [data], length - len(data)
        while missing:
            part = self._received(min(missing, 1 << 20))
            if not part:
                raise EOFError("the other end is gone")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def shared_file(size: int) -> int:
    """The descriptor of a file in memory that has no name: it is gone with the last process that holds it."""
    if hasattr(os, "memfd_create"):
        made = os.memfd_create("delegate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            made = os.dup(file.fileno())
    try:
        os.truncate(made, size)
        if hasattr(fcntl, "F_ADD_SEALS"):  # who cuts a file that another process has mapped ends that (SIGBUS)
            fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(made)
        raise
    return made


class Tensors:
    """The inputs and outputs of a delegate, one behind another in shared memory.

    Args:
        types: of the inputs, then of the outputs.
    """

    def __init__(self, types: Sequence[TensorType]) -> None:
        self.types, self.offsets, end = tuple(types), list[int](), 0
        for shape, dtype in types:
            self.offsets.append(end)
            end = align(end + dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
        self.size = max(end, mmap.PAGESIZE)

    def arrays(self, memory: mmap.mmap) -> list[Array]:
        """Them as arrays over that memory."""
        places = zip(self.types, self.offsets, strict=True)
        return [array_over(memory, dtype, shape, offset) for (shape, dtype), offset in places]

    def to_json(self) -> list[Any]:
        """Them as plain JSON."""
        return [[list(shape), dtype.str] for shape, dtype in self.types]

    @classmethod
    def from_json(cls, rows: list[Any]) -> Tensors:
        """What `to_json` gave."""
        return cls([TensorType(tuple(shape), np.dtype(name)) for shape, name in rows])
