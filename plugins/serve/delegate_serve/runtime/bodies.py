"""The body of an HTTP request, received into memory at which its binary data is aligned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import numpy as np

from delegate.runtime.backend import Array
from delegate_serve.runtime.errors import Disconnected, RequestError
from delegate_serve.runtime.settings import MAX_JSON, MIB

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

JSON_SIZE = b"inference-header-content-length"  # the header with the bytes of JSON before binary data
EXTENSION = "delegate.body"  # of ASGI: the body of the request
_ALIGNMENT = 64


class Reservation:
    """Bytes of memory that a request uses.

    Args:
        reserve: counts bytes of all requests, and raises RequestError if there are too many; negative numbers release
            them.
    """

    def __init__(self, reserve: Callable[[int], None]) -> None:
        self._reserve, self._size = reserve, 0

    def add(self, size: int) -> None:
        """Count more bytes; raise RequestError if there are too many."""
        self._reserve(size)
        self._size += size

    def release(self) -> None:
        """Count the bytes as free."""
        if self._size:
            self._reserve(-self._size)
        self._size = 0


class Body:
    """The body of a request, whose binary data begins at an aligned address.

    The connection writes it, and the application reads it as a whole. Bytes count as memory in use from the call of
    `read` to the call of `release`. A body that is wrong or not read any more is received, but not stored.

    Args:
        headers: The request's headers, with names in lower case.
        limit: bytes that a body may have.
        reserve: see `Reservation`.
    """

    def __init__(self, headers: Iterable[tuple[bytes, bytes]], limit: int, reserve: Callable[[int], None]) -> None:
        self._limit = limit
        self.reservation = Reservation(reserve)
        self._is_read = self._is_dropped = False
        self._received = 0
        self._error: RequestError | None = None
        self._data: Array | None = None
        self._chunks = bytearray()  # of a body without a declared size
        self.size: int | None = None
        try:
            fields = dict(headers)
            self._json_size = _number(fields, JSON_SIZE)
            self.size = _number(fields, b"content-length")
            if self.size is not None:
                self._allocate(self.size)
        except RequestError as error:
            self._error = error

    def _allocate(self, size: int) -> None:
        if size > self._limit:
            raise too_large(self._limit)
        if self._json_size is not None and self._json_size > MAX_JSON:
            raise _too_much_json()
        self._data = aligned(size, size if self._json_size is None else self._json_size)

    @property
    def is_wrong(self) -> bool:
        """Return True if the request can be answered before its body is complete."""
        return self._error is not None

    def place(self, other: memoryview) -> memoryview:
        """Return the place for the next bytes of a body with a declared size; `other` if they are not stored."""
        left = (self.size or 0) - self._received
        if self._data is None or self._error is not None or self._is_dropped:
            return other[:left]
        return self._data.data[self._received :]

    def wrote(self, size: int) -> bool:
        """Count bytes at the place; return True if the body is complete."""
        self._received += size
        self._count(size)
        return self._received == self.size

    def write(self, chunk: bytes) -> None:
        """Copy bytes."""
        if self._error is None and not self._is_dropped:
            if self._data is not None:
                self._data[self._received : self._received + len(chunk)] = np.frombuffer(chunk, np.uint8)
            elif self._received + len(chunk) > self._limit:
                self._error = too_large(self._limit)
            else:
                self._chunks += chunk
        self.wrote(len(chunk))

    async def read(self, receive: Receive) -> tuple[Array, int]:
        """Wait for the body, and return its bytes and the size of its JSON.

        Raises:
            RequestError: the body, its JSON or all bodies together are too large, or its size is wrong.
            Disconnected: the client has gone.
        """
        self._is_read = True
        self._count(self._received)
        more = True
        while more and self._error is None:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            more = message["more_body"]
        if self._error is not None:
            raise self._error
        data = np.frombuffer(self._chunks, np.uint8) if self._data is None else self._data
        json_size = data.size if self._json_size is None else self._json_size
        if json_size > data.size:
            raise RequestError(400, f"{JSON_SIZE.decode()} is {json_size}, but the body has {data.size} bytes")
        if json_size > MAX_JSON:
            raise _too_much_json()
        return data, json_size

    def drop(self) -> None:
        """Store nothing more: the request is answered."""
        self._is_dropped, self._data = True, None
        self._chunks.clear()

    def release(self) -> None:
        """Count the bytes of the body as free."""
        self._is_read = False
        self.reservation.release()

    def _count(self, size: int) -> None:
        if self._is_read and self._error is None:
            try:
                self.reservation.add(size)
            except RequestError as error:
                self._error = error


def aligned(size: int, json_size: int = 0) -> Array:
    """Return uninitialised bytes whose part after the JSON begins at an aligned address."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -(memory.__array_interface__["data"][0] + json_size) % _ALIGNMENT
    return memory[first : first + size]


def _number(headers: MutableMapping[bytes, bytes], name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise RequestError(400, f"the header {name.decode()} is no number of bytes")
    return int(value)


def too_large(limit: int) -> RequestError:
    """Return the error of a request with more bytes than the limit."""
    return RequestError(413, f"the body has more than {limit} bytes: the server's option --max-body is the limit")


def _too_much_json() -> RequestError:
    return RequestError(413, f"the request has more than {MAX_JSON // MIB} MiB of JSON: send tensors as binary data")
