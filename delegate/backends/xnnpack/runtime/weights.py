"""Large constants of a model, stored separately: partitions and methods share them, in the smallest lossless form.

Floats of programs in float16 and bfloat16 are stored in 16 bits, and small integers in 4 bits. Floats that a quantized
program decodes from integers are stored as runs of integers with a scale per run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from delegate.program.dtypes import is_small, pack_pairs, unpack_pairs
from delegate.program.raw import array_over

if TYPE_CHECKING:
    from delegate.backend.qdq import Coded

LEAST = 4096  # bytes; smaller constants stay in the model

Array = np.ndarray[Any, np.dtype[Any]]
# The position of a constant in the model without constants, and its storage form. For runs also the number of values,
# their bits, the number of values per scale, and true if each run has a zero point.
Place = tuple[Any, ...]


def _from_bfloat16(bits: Array) -> Array:
    return bits.astype(np.uint32) << np.uint32(16)


# Storage form of a constant -> dtype of stored elements, and conversion to the model's elements.
_STORED: Mapping[str, tuple[np.dtype[Any], Callable[[Array], Array]]] = {
    "": (np.dtype("u1"), lambda raw: raw),
    "float16": (np.dtype("<f2"), lambda half: half.astype("<f4")),
    "bfloat16": (np.dtype("<u2"), _from_bfloat16),
    "int4": (np.dtype("u1"), unpack_pairs),
}
_WIDER = {"": 1, "float16": 2, "bfloat16": 2, "int4": 2}  # bytes of the model per stored byte
_RUNS = "runs"


def extract_constants(
    model: bytes, constants: Iterable[tuple[int, Array, Coded | None]]
) -> tuple[bytes, list[Place], list[memoryview]]:
    """Return a model without its large constants, their places, and their stored data.

    Args:
        model: the whole model.
        constants: the start of each constant, its array, and the integers that it was decoded from.
    """
    rest, places, data = [], list[Place](), list[memoryview]()
    at = position = 0
    for start, array, coded in sorted(constants, key=lambda constant: constant[0]):
        if array.nbytes >= LEAST:
            rest.append(model[at:start])
            position += start - at
            at = start + array.nbytes
            how, stored = _runs(coded) if coded is not None else _narrow(array)
            places.append((position, *how))
            data.append(stored.reshape(-1).view(np.uint8).data.toreadonly())
    return b"".join((*rest, model[at:])), places, data


def _narrow(array: Array) -> tuple[Place, Array]:
    """Return the storage form of a constant and its data, in half the bits per element if this is lossless."""
    if array.dtype == np.float32:
        bits = array.reshape(-1).view(np.uint32)
        if not (bits & np.uint32(0xFFFF)).any():
            return ("bfloat16",), (bits >> np.uint32(16)).astype(np.uint16)
        with np.errstate(over="ignore", invalid="ignore"):
            half = array.astype(np.float16)
        if np.array_equal(half.astype(np.float32).reshape(-1).view(np.uint32), bits):
            return ("float16",), half
    if array.dtype == np.int8 and is_small(array):
        return ("int4",), pack_pairs(array)
    return ("",), array


def _runs(coded: Coded) -> tuple[Place, Array]:
    """Return the storage form of integers and their data, in memory order, with a scale per run."""
    assert coded.scale is not None
    bits = 4 if is_small(coded.values) else 8
    values = pack_pairs(coded.values) if bits == 4 else coded.values
    size = coded.values.size // coded.scale.size
    parts = [coded.scale.astype("<f4"), values]
    if not coded.symmetric:
        assert coded.zero_point is not None
        parts.append(coded.zero_point.astype(np.int8))
    stored = np.concatenate([np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in parts])
    return (_RUNS, coded.values.size, bits, size, not coded.symmetric), stored


def _from_runs(stored: memoryview, count: int, bits: int, size: int, with_zeros: bool) -> Array:
    scales = array_over(stored, np.dtype("<f4"), (count // size, 1))
    at = scales.nbytes
    raw = array_over(stored, np.dtype("u1" if bits == 4 else "i1"), (count * bits // 8,), at)
    values = (unpack_pairs(raw) if bits == 4 else raw).astype(np.float32).reshape(-1, size)
    if with_zeros:
        values -= array_over(stored, np.dtype("i1"), (count // size, 1), at + raw.nbytes)
    values *= scales
    return values


class Piece(NamedTuple):
    """A constant of a model that is stored separately.

    Args:
        start: Where it begins in the whole model.
        size: bytes in the whole model.
        stored: its stored data.
        how: its storage form.
    """

    start: int
    size: int
    stored: memoryview
    how: tuple[Any, ...]

    def content(self) -> memoryview:
        """Return its bytes in the whole model; raise ValueError or TypeError if stored data and size do not match."""
        kind, *how = self.how
        if kind == _RUNS:
            content = _from_runs(self.stored, *how)
        else:
            dtype, widened = _STORED[kind]
            content = widened(array_over(self.stored, dtype, (self.stored.nbytes // dtype.itemsize,), 0))
        if content.nbytes != self.size:
            raise ValueError(f"a constant of {content.nbytes} bytes, but {self.size} bytes are stored")
        return content.reshape(-1).view(np.uint8).data


def pieces(model: memoryview, places: Sequence[Place], data: Sequence[memoryview]) -> list[Piece]:
    """Return the constants of a model without them.

    Raises:
        ValueError, LookupError, TypeError: the constants do not fit the places, or the sizes that the model has there.
    """
    starts = [start for start, *_ in places]
    if len(places) != len(data) or any(a > b for a, b in pairwise([0, *starts, model.nbytes])):
        raise ValueError(f"{len(data)} constants, but places for {len(places)} within {model.nbytes} bytes")
    result, before = [], 0
    for (start, *how), stored in zip(places, data, strict=True):
        result.append(Piece(start + before, _full_size(stored.nbytes, *how), stored, tuple(how)))
        if int.from_bytes(model[max(0, start - 4) : start], "little") != result[-1].size:  # a vector's length is first
            raise ValueError(f"a constant of {result[-1].size} bytes, but the model has another size at {start}")
        before += result[-1].size
    return result


def _full_size(stored: int, kind: str, *how: Any) -> int:
    if kind == _RUNS:
        count, bits, size, with_zeros = how
        if [type(each) for each in how] != [int, int, int, bool]:
            raise TypeError(f"runs of {how}")
        if bits not in (4, 8) or size <= 0 or count <= 0 or count % size or (bits == 4 and count % 2):
            raise ValueError(f"{count} integers of {bits} bits in runs of {size}")
        if count // size * (5 if with_zeros else 4) + count * bits // 8 != stored:
            raise ValueError(f"{count} integers of {bits} bits in {stored} bytes")
        return 4 * int(count)
    if how:
        raise ValueError(f"{kind!r} does not have the parameters {how}")
    return stored * _WIDER[kind]


def assemble(model: memoryview, constants: Sequence[Piece]) -> bytes:
    """Return the whole model; raise as `Piece.content` does."""
    first, *others = (rest for _, rest in split_at_constants(model, constants))
    following = ((piece.content(), rest) for piece, rest in zip(constants, others, strict=True))
    return b"".join((first, *chain.from_iterable(following)))


def split_at_constants(model: memoryview, constants: Sequence[Piece]) -> Iterator[tuple[int, memoryview]]:
    """Yield the parts before, between and after the constants: start in the whole model, and bytes."""
    at = before = 0
    for piece in constants:
        end = piece.start - before
        yield at + before, model[at:end]
        at, before = end, before + piece.size
    yield at + before, model[at:]
