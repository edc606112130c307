"""A reader of untrusted flatbuffers: every offset is checked, and unexpected fields are rejected.

LiteRT follows the offsets of a model without checks. A model that this reader accepts has no other content than the
tables of `verifier`: a table with another field is rejected.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from delegate.program.raw import array_over

# The kind of a field: a scalar by its code in `struct`, or one of these.
INTEGERS = "integers"  # a vector of int32, as a list
LONGS = "longs"  # a vector of int64, as an array: there may be many
FLOATS = "floats"  # a vector of float32, likewise
BYTES = "bytes"  # a vector of bytes: its start and length; the bytes are not read
TEXT = "text"  # likewise
TABLE = "table"  # its start
TABLES = "tables"  # the start of each


_WIDTHS = {BYTES: 1, TEXT: 1, LONGS: 8}
_NUMBERS = {INTEGERS: "<i4", LONGS: "<i8", FLOATS: "<f4"}


class Field(NamedTuple):
    """A field of a table.

    Args:
        slot: its number.
        kind: of its value.
        default: its value if it is omitted.
    """

    slot: int
    kind: str
    default: Any = None


Fields = Mapping[str, Field]


class Malformed(ValueError):
    """Bytes that are not a flatbuffer of the expected tables."""


class Reader:
    """The tables of a flatbuffer.

    Args:
        data: the whole buffer.
        gaps: ranges of missing bytes, each (start, size), in order. They are not read, so they can only be content of
            vectors of bytes.

    Raises:
        Malformed: by every method; what is wrong, and where.
    """

    def __init__(self, data: memoryview, gaps: Sequence[tuple[int, int]] = ()) -> None:
        self._data = data
        self._gaps = [(start, start + size) for start, size in gaps if size]
        self._left = len(data)  # bytes of vectors that may still be read: vectors may overlap to this limit

    def root(self, identifier: bytes) -> int:
        """Return the start of the root table of a buffer with this identifier."""
        if bytes(self._data[4:8]) != identifier:
            raise Malformed(f"it does not begin as a file of {identifier.decode()} does")
        return self._offset(0)

    def table(self, start: int, fields: Fields) -> dict[str, Any]:
        """Return the fields of a table by name; raise Malformed also for a field that is not in `fields`."""
        vtable = start - self._scalar("i", start)
        size, length = self._scalar("H", vtable), self._scalar("H", vtable + 2)
        if size < 4 or size % 2 or vtable % 2 or length < 4:
            raise Malformed(f"the table at {start} has a wrong list of fields")
        self._need(vtable, size)
        self._need(start, length)
        places = struct.unpack_from(f"<{(size - 4) // 2}H", self._data, vtable + 4)
        values, count = {}, 0
        for name, (slot, kind, default) in fields.items():
            place = places[slot] if slot < len(places) else 0
            if place:
                count += 1
                width = struct.calcsize(kind) if len(kind) == 1 else 4
                if not 4 <= place <= length - width:
                    raise Malformed(f"{name} of the table at {start} lies beyond it")
                values[name] = self._value(kind, start + place)
            else:
                values[name] = default
        if count != len(places) - places.count(0):
            raise Malformed(f"the table at {start} has fields that are not known")
        return values

    def _value(self, kind: str, start: int) -> Any:
        if len(kind) == 1:
            return self._scalar(kind, start)
        target = self._offset(start)
        if kind == TABLE:
            return target
        count = self._scalar("I", target)
        first, width = target + 4, _WIDTHS.get(kind, 4)
        if kind == BYTES:
            self._within(first, count)
            return first, count
        self._need(first, count * width + (kind == TEXT))
        if kind == TEXT:
            if self._data[first + count]:
                raise Malformed(f"the text at {target} has no end")
            return first, count
        self._left -= count * width
        if self._left < 0:
            raise Malformed("its vectors share their bytes too often")
        if first % width:
            raise Malformed(f"the vector at {target} is not aligned")
        if kind == TABLES:
            return [self._offset(first + 4 * i) for i in range(count)]
        numbers = array_over(self._data, np.dtype(_NUMBERS[kind]), (count,), first)
        return numbers.tolist() if kind == INTEGERS else numbers

    def integers(self, place: tuple[int, int]) -> list[int]:
        """Return the int32 content of a vector of bytes, which is located by its start and length."""
        self._need(*place)
        numbers: list[int] = array_over(self._data, np.dtype("<i4"), (place[1] // 4,), place[0]).tolist()
        return numbers

    def _offset(self, start: int) -> int:
        """Return the target of a reference, which has at least 4 bytes."""
        target: int = start + self._scalar("I", start)
        if target % 4 or target == start:
            raise Malformed(f"the reference at {start} leads nowhere")
        self._need(target, 4)
        return target

    def _scalar(self, code: str, start: int) -> Any:
        width = struct.calcsize(code)
        self._need(start, width)
        if start % width:
            raise Malformed(f"a number at {start} is not aligned")
        return struct.unpack_from("<" + code, self._data, start)[0]

    def _need(self, start: int, size: int) -> None:
        self._within(start, size)
        before = bisect_left(self._gaps, (start + size,))
        if before and self._gaps[before - 1][1] > start:
            raise Malformed(f"{size} bytes at {start} lie where a constant is put later")

    def _within(self, start: int, size: int) -> None:
        if start < 0 or start + size > len(self._data):
            raise Malformed(f"{size} bytes at {start} lie beyond its end")
