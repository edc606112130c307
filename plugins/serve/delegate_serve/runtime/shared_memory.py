"""Shared memory of the system, which clients on this machine register as regions for tensors.

It is an extension of Triton:
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md.

The system copies tensors from and to regions. With mapped memory, a client that makes a region smaller would end the
server, and one that writes during a call would change numbers after their checks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from delegate.errors import did_you_mean
from delegate.runtime.backend import Array
from delegate_serve.runtime.bodies import Reservation, aligned
from delegate_serve.runtime.errors import RequestError

FOLDER = Path("/dev/shm")  # of POSIX shared memory on Linux
MAX_REGIONS = 64  # each has an open file
_MAX_KEY = 255
_LARGE = 16 << 20  # bytes of a region whose copies another thread makes
_FLAGS = ("O_RDWR", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK")  # the last one: a pipe must not stop the server


class Place(NamedTuple):
    """The place of a tensor in a region.

    Args:
        region: its name.
        offset: bytes before the tensor.
        size: bytes of the tensor, or those that a result may have.
    """

    region: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class _Region:
    """A registered region.

    Args:
        key: the name of the memory in the system.
        offset: bytes before the region.
        size: bytes of the region.
        file: the descriptor of the memory.
    """

    key: str
    offset: int
    size: int
    file: int


class Regions:
    """The regions of a server.

    Args:
        prefix: the first letters of all keys that clients may use; None: clients may use none.
    """

    def __init__(self, prefix: str | None = None) -> None:
        self._prefix = prefix
        self._regions: dict[str, _Region] = {}
        self._lock = Lock()  # a descriptor must not be closed while a thread uses it

    @property
    def is_enabled(self) -> bool:
        """Return True if clients may use shared memory."""
        return self._prefix is not None

    @property
    def are_large(self) -> bool:
        """Return True if copies of a region may take long."""
        return any(region.size > _LARGE for region in self._regions.values())

    def register(self, name: str, fields: Mapping[str, Any]) -> None:
        """Open a region.

        Args:
            name: The region's name.
            fields: key, offset and byte_size of the protocol.

        Raises:
            RequestError: the region has no valid name, key or size, or there are too many.
        """
        self._require_enabled()
        key = self._key(fields.get("key"))
        offset, size = _bytes(fields.get("offset", 0), "offset"), _bytes(fields.get("byte_size"), "byte_size")
        with self._lock:
            if not name:
                raise RequestError(400, "the region has no name")
            if name in self._regions:
                raise RequestError(400, f"there is a region {name[:100]!r} already: unregister it first")
            if len(self._regions) == MAX_REGIONS:
                raise RequestError(400, f"there are {MAX_REGIONS} regions: unregister one first")
            self._regions[name] = _Region(key, offset, size, _open(key, offset + size))

    def unregister(self, name: str) -> None:
        """Close a region, or all if the name is empty. A region that does not exist is not an error, as in Triton."""
        self._require_enabled()
        with self._lock:
            for each in [name] if name else [*self._regions]:
                if (region := self._regions.pop(each, None)) is not None:
                    os.close(region.file)

    def status(self, name: str) -> list[dict[str, Any]]:
        """Return the description of a region, or of all if the name is empty; raise RequestError if there is none."""
        self._require_enabled()
        names = [name] if name else [*self._regions]
        rows = [(each, self._find(each, "the request")) for each in names]
        return [{"name": each, "key": r.key, "offset": r.offset, "byte_size": r.size} for each, r in rows]

    def read(self, place: Place, reservation: Reservation, where: str) -> Array:
        """Return a copy of the bytes at a place.

        Args:
            place: A place in a region.
            reservation: counts the bytes.
            where: the tensor, for messages.

        Raises:
            RequestError: the region does not exist or has no such place, or there are too many bytes.
        """
        with self._lock:
            region = self._require_inside(place, where)
            reservation.add(place.size)
            data = aligned(place.size)
            if os.preadv(region.file, [data.data], region.offset + place.offset) != place.size:
                raise RequestError(400, f"the memory of {where} is smaller than its region {place.region[:100]!r}")
        return data

    def write(self, place: Place, array: Array, where: str) -> None:
        """Copy a result to a place; raise RequestError if it does not fit, or the region does not exist any more."""
        if array.nbytes > place.size:
            what = f"{where} has {array.nbytes} bytes, but its place in shared memory has {place.size}"
            raise RequestError(400, what)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        with self._lock:
            region = self._require_inside(place, where)
            try:
                written = os.pwritev(region.file, [data], region.offset + place.offset)
            except OSError as error:
                raise RequestError(400, f"{where} cannot be written to shared memory: {error.strerror}") from error
        if written != array.nbytes:
            raise RequestError(400, f"{where} cannot be written to shared memory: it is full")

    def close(self) -> None:
        """Close all regions."""
        if self.is_enabled:
            self.unregister("")

    def _require_enabled(self) -> None:
        if not self.is_enabled:
            raise RequestError(403, "clients may not use shared memory: start the server with --shared-memory")

    def _key(self, key: Any) -> str:
        """Return the name of a file; raise RequestError if it is none, or clients may not use it."""
        if not isinstance(key, str):
            raise RequestError(400, "the key of the region should be a text")
        name = key.lstrip("/")  # as the C library does
        if name in ("", ".", "..") or "/" in name or "\0" in name or len(os.fsencode(name)) > _MAX_KEY:
            raise RequestError(400, f"the key {key[:100]!r} is no name of shared memory")
        if not name.startswith(self._prefix or ""):
            what = f"the key {key[:100]!r} does not begin with {self._prefix!r}, the server's option --shared-memory"
            raise RequestError(403, what)
        return name

    def _find(self, name: str, where: str) -> _Region:
        if name not in self._regions:
            what = f"{where} names no region that is registered: {did_you_mean(name[:100], self._regions)}"
            raise RequestError(400, what)
        return self._regions[name]

    def _require_inside(self, place: Place, where: str) -> _Region:
        region = self._find(place.region, where)
        end = place.offset + place.size
        if end > region.size:
            raise RequestError(400, f"{where} ends at byte {end}, but region {place.region[:100]!r} has {region.size}")
        return region


def _bytes(value: Any, what: str) -> int:
    if type(value) is not int or value < 0:
        raise RequestError(400, f"the {what} of the region is no number of bytes")
    return value


def _open(key: str, size: int) -> int:
    """Return the descriptor of a shared memory with so many bytes; raise RequestError if there is none."""
    try:
        file = os.open(FOLDER / key, sum(getattr(os, flag) for flag in _FLAGS))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no name"
        raise RequestError(400, f"the shared memory {key[:100]!r} cannot be opened: {reason}") from error
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and size <= found.st_size:
        return file
    os.close(file)
    if not stat.S_ISREG(found.st_mode):
        raise RequestError(400, f"{key[:100]!r} is no shared memory")
    raise RequestError(400, f"the region ends at byte {size}, but the shared memory {key[:100]!r} has {found.st_size}")
