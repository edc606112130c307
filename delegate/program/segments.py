"""The segments of a program file: their alignment, layout and checksums, and the check of both.

A segment's checksum is the SHA-256 over the SHA-256s of its chunks of 1 MiB (the last may be shorter). So one large
segment is hashed on all cores, and segments of the same content are stored once.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from delegate.errors import ProgramError
from delegate.program.cores import BackgroundCall, cores

ALIGNMENT = 64  # bytes: a cache line, and the preferred alignment of vendor libraries

CHUNK = 1 << 20  # bytes, hashed at a time
DIGEST_SIZE = 32  # bytes of a SHA-256
_SMALL = 4 * CHUNK  # bytes; less is hashed faster than threads start
_ZEROS = bytes(ALIGNMENT)
_REMEDY = "the file is damaged: copy it again, or lower the model again"


def align(size: int) -> int:
    """Return the size in bytes, rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Directory(NamedTuple):
    """The layout of the segments: for each its offset from the start of the segments' area, its size, its checksum.

    With `debug`, the last segment is the debug info, which is not a segment of the model.
    """

    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    digests: tuple[bytes, ...] = ()
    debug: bool = False

    @property
    def size(self) -> int:
        """The bytes of the area."""
        return max((o + s for o, s in zip(self.offsets, self.sizes, strict=True)), default=0)

    def find_stored(self) -> list[int]:
        """Return the segments with bytes in the file, in file order. Of segments that share bytes, the first is
        returned.
        """
        places: dict[tuple[int, int], int] = {}
        for index, place in enumerate(zip(self.offsets, self.sizes, strict=True)):
            places.setdefault(place, index)
        return [places[place] for place in sorted(places)]


def flat(segment: memoryview | bytes | bytearray) -> memoryview:
    """Return the bytes of a segment in memory order; raise ProgramError if they are not contiguous."""
    view = memoryview(segment)
    if not view.c_contiguous:
        raise ProgramError("a segment is not contiguous in memory", remedy="pass bytes or a contiguous memoryview")
    return memoryview(b"") if view.nbytes == 0 else view.cast("B").toreadonly()


def layout(segments: Sequence[memoryview]) -> Directory:
    """Place the segments one after the other, each content once."""
    digests = checksums(segments)
    places: dict[tuple[bytes, int], int] = {}
    offsets = []
    end = 0
    for segment, digest in zip(segments, digests, strict=True):
        offset = places.get((digest, segment.nbytes))
        if offset is None:
            offset = places[digest, segment.nbytes] = align(end)
            end = offset + segment.nbytes
        offsets.append(offset)
    return Directory(tuple(offsets), tuple(s.nbytes for s in segments), tuple(digests))


def checksums(segments: Sequence[memoryview]) -> list[bytes]:
    """Return the checksum of every segment, computed on all cores (hashlib releases the interpreter lock)."""
    chunks = [s[at : at + CHUNK] for s in segments for at in range(0, s.nbytes, CHUNK)]
    if sum(c.nbytes for c in chunks) < _SMALL:
        hashed: Iterator[bytes] = iter(_hash_segment(chunks))
    else:
        count = min(cores(), 8)
        tasks = [BackgroundCall(partial(_hash_segment, chunks[i::count])) for i in range(count)]
        parts = [iter(t.result()) for t in tasks]
        hashed = (next(parts[i % count]) for i in range(len(chunks)))
    return [_sha256(b"".join(next(hashed) for _ in range(0, s.nbytes, CHUNK))) for s in segments]


def split(directory: Directory, area: memoryview, owner: Callable[[int], str]) -> tuple[memoryview, ...]:
    """Return the segments as views of the area, after all checks.

    Args:
        directory: read from the file.
        area: all bytes of the file after the tables.
        owner: returns the owner of a segment, for messages.

    Raises:
        ProgramError: an offset or a size is impossible, the padding is not zero, or a checksum is wrong.
    """
    _check_places(directory, area, owner)
    views = tuple(area[o : o + s] for o, s in zip(directory.offsets, directory.sizes, strict=True))
    stored = directory.find_stored()
    for index, digest in zip(stored, checksums([views[i] for i in stored]), strict=True):
        if digest != directory.digests[index]:
            raise ProgramError(
                f"segment {index} was altered: its checksum does not match", where=owner(index), remedy=_REMEDY
            )
        if isinstance(area.obj, mmap.mmap):
            _CHECKED.setdefault(area.obj, {})[place_of(views[index])] = digest
    return views


def checksum(segment: memoryview) -> bytes:
    """Return the checksum of a segment, which is cached for segments of checked files."""
    checked = _CHECKED.get(segment.obj, {}) if isinstance(segment.obj, mmap.mmap) else {}
    return checked.get(place_of(segment)) or checksums([segment])[0]


_CHECKED = WeakKeyDictionary[mmap.mmap, dict[tuple[int, int], bytes]]()  # checksums by place in memory


def place_of(view: memoryview) -> tuple[int, int]:
    """Return the address of contiguous bytes, and their number."""
    return (np.frombuffer(view, np.uint8).ctypes.data if view.nbytes else 0), view.nbytes


def _check_places(directory: Directory, area: memoryview, owner: Callable[[int], str]) -> None:
    """Check that every segment lies where `layout` would put it. So none overlap, and all bytes have an owner."""
    seen: dict[tuple[int, int], bytes] = {}
    end = 0
    for index, (offset, size, digest) in enumerate(
        zip(directory.offsets, directory.sizes, directory.digests, strict=True)
    ):
        if seen.get((offset, size)) == digest:
            continue
        if offset != align(end) or offset + size > area.nbytes or (offset, size) in seen:
            problem = f"segment {index} cannot be at offset {offset} with {size} bytes"
            raise ProgramError(problem, where=owner(index), remedy=_REMEDY)
        if area[end:offset] != _ZEROS[: offset - end]:
            raise ProgramError(f"the padding before segment {index} is not zero", where=owner(index), remedy=_REMEDY)
        seen[offset, size] = digest
        end = offset + size
    if end != area.nbytes:
        raise ProgramError(f"the segments end at {end} of {area.nbytes} bytes", remedy=_REMEDY)


def _hash_segment(chunks: Sequence[memoryview]) -> list[bytes]:
    return [_sha256(c) for c in chunks]


def _sha256(data: memoryview | bytes) -> bytes:
    return hashlib.sha256(data).digest()


def pieces(directory: Directory, segments: Sequence[memoryview]) -> Iterable[memoryview | bytes]:
    """Yield the paddings and segments that make the area, in order."""
    end = 0
    for index in directory.find_stored():
        yield _ZEROS[: directory.offsets[index] - end]
        yield segments[index]
        end = directory.offsets[index] + segments[index].nbytes
