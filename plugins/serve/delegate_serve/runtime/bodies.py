"""The body of an HTTP request, read into memory at which its binary data is aligned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import numpy as np

from delegate.runtime.backend import Array
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.settings import MAX_JSON, MIB

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

JSON_SIZE = b"inference-header-content-length"  # the header with the bytes of JSON before binary data
_ALIGNMENT = 64


class Disconnected(Exception):
    """The client has gone before its request was complete."""


class Body:
    """The body of a request, whose binary data begins at an aligned address.

    Args:
        reserve: counts bytes of memory, and raises RequestError if there are too many.
    """

    def __init__(self, reserve: Callable[[int], None]) -> None:
        self._reserve, self._reserved = reserve, 0

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> tuple[Array, int]:
        """Return the bytes of the body, and the size of its JSON.

        Raises:
            RequestError: the body, its JSON or all bodies together are too large, or its size is wrong.
            Disconnected: the client has gone.
        """
        declared = _number(headers, b"content-length")
        json_size = _number(headers, JSON_SIZE)
        if declared is not None and declared > limit:
            raise _too_large(limit)
        if json_size is not None and json_size > MAX_JSON:
            raise _too_much_json()
        if declared is None:
            data = await self._chunks(receive, limit)
        else:
            data = _aligned(declared, declared if json_size is None else json_size)
            received, more = 0, True
            while more:
                chunk, more = await self._chunk(receive)
                data[received : received + len(chunk)] = np.frombuffer(chunk, np.uint8)
                received += len(chunk)
        json_size = data.size if json_size is None else json_size
        if json_size > data.size:
            raise RequestError(400, f"{JSON_SIZE.decode()} is {json_size}, but the body has {data.size} bytes")
        if json_size > MAX_JSON:
            raise _too_much_json()
        return data, json_size

    def release(self) -> None:
        """Count the bytes of the body as free."""
        self._reserve(-self._reserved)
        self._reserved = 0

    async def _chunks(self, receive: Receive, limit: int) -> Array:
        """Return a body without a declared size."""
        data, more = bytearray(), True
        while more:
            chunk, more = await self._chunk(receive)
            data += chunk
            if len(data) > limit:
                raise _too_large(limit)
        return np.frombuffer(data, np.uint8)

    async def _chunk(self, receive: Receive) -> tuple[bytes, bool]:
        """Return the next bytes, and True if more follow."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk: bytes = message["body"]
        self._reserve(len(chunk))
        self._reserved += len(chunk)
        return chunk, message["more_body"]


def _aligned(size: int, json_size: int) -> Array:
    """Return uninitialised bytes whose part after the JSON begins at an aligned address."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -(memory.ctypes.data + json_size) % _ALIGNMENT
    return memory[first : first + size]


def _number(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise RequestError(400, f"the header {name.decode()} is no number of bytes")
    return int(value)


def _too_large(limit: int) -> RequestError:
    return RequestError(413, f"the body has more than {limit} bytes: the server's option --max-body is the limit")


def _too_much_json() -> RequestError:
    return RequestError(413, f"the request has more than {MAX_JSON // MIB} MiB of JSON: send tensors as binary data")
