"""Large constants of a model apart from it: partitions and methods share them, stored as small as nothing is lost.

16 bits hold the floats of programs in float16 and bfloat16, 4 bits small integers; of floats that a quantized program
makes of integers, run by run with a scale of each run, these are stored.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from delegate.backends.xnnpack.verified import Graph
from delegate.backends.xnnpack.verifier import verify
from delegate.program.raw import array_over
from delegate.program.small_integers import is_small, packed, unpacked

if TYPE_CHECKING:
    from delegate.backends.xnnpack.quantized import Coded

LEAST = 4096  # bytes; what is smaller stays in the model

Array = np.ndarray[Any, np.dtype[Any]]
# Where a constant goes in the model without any, and how it is stored; of runs also how many numbers there are, their
# bits, how many share a scale, and whether each run has a zero point.
Place = tuple[Any, ...]


def _from_bfloat16(bits: Array) -> Array:
    return bits.astype(np.uint32) << np.uint32(16)


# How a constant is stored -> the elements that are, and what makes those of the model of them.
_STORED: Mapping[str, tuple[np.dtype[Any], Callable[[Array], Array]]] = {
    "": (np.dtype("u1"), lambda raw: raw),
    "float16": (np.dtype("<f2"), lambda half: half.astype("<f4")),
    "bfloat16": (np.dtype("<u2"), _from_bfloat16),
    "int4": (np.dtype("u1"), unpacked),
}
_WIDER = {"": 1, "float16": 2, "bfloat16": 2, "int4": 2}  # bytes of the model for one that is stored
_RUNS = "runs"


def take_apart(
    model: bytes, constants: Iterable[tuple[int, Array, Coded | None]]
) -> tuple[bytes, list[Place], list[memoryview]]:
    """A model without its large constants; where they go, and what is stored of them.

    Args:
        model: the whole.
        constants: where each begins in it, what it is, and the integers that it was made of.
    """
    rest, places, data = [], list[Place](), list[memoryview]()
    at = left = 0
    for start, array, coded in sorted(constants, key=lambda found: found[0]):
        if array.nbytes >= LEAST:
            rest.append(model[at:start])
            left += start - at
            at = start + array.nbytes
            how, stored = _runs(coded) if coded is not None else _halved(array)
            places.append((left, *how))
            data.append(stored.reshape(-1).view(np.uint8).data.toreadonly())
    return b"".join((*rest, model[at:])), places, data


def _halved(array: Array) -> tuple[Place, Array]:
    """A constant in half its bits per element where nothing is lost, and how that is called."""
    if array.dtype == np.float32:
        bits = array.reshape(-1).view(np.uint32)
        if not (bits & np.uint32(0xFFFF)).any():
            return ("bfloat16",), (bits >> np.uint32(16)).astype(np.uint16)
        with np.errstate(over="ignore", invalid="ignore"):
            half = array.astype(np.float16)
        if np.array_equal(half.astype(np.float32).reshape(-1).view(np.uint32), bits):
            return ("float16",), half
    if array.dtype == np.int8 and is_small(array):
        return ("int4",), packed(array)
    return ("",), array


def _runs(coded: Coded) -> tuple[Place, Array]:
    """Integers, as they lie in memory, with a scale for each run of them."""
    assert coded.scale is not None
    bits = 4 if is_small(coded.values) else 8
    values = packed(coded.values) if bits == 4 else coded.values
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
    values = (unpacked(raw) if bits == 4 else raw).astype(np.float32).reshape(-1, size)
    if with_zeros:
        values -= array_over(stored, np.dtype("i1"), (count // size, 1), at + raw.nbytes)
    values *= scales
    return values


class Piece(NamedTuple):
    """A constant of a model that is stored apart from it.

    Args:
        start: where it begins in the whole model.
        size: bytes that it takes there.
        stored: what is stored of it.
        how: how.
    """

    start: int
    size: int
    stored: memoryview
    how: tuple[Any, ...]

    def content(self) -> memoryview:
        """Its bytes in the whole model; raises ValueError or TypeError where they are not as many, or none."""
        kind, *how = self.how
        if kind == _RUNS:
            whole = _from_runs(self.stored, *how)
        else:
            dtype, widened = _STORED[kind]
            whole = widened(array_over(self.stored, dtype, (self.stored.nbytes // dtype.itemsize,), 0))
        if whole.nbytes != self.size:
            raise ValueError(f"a constant of {whole.nbytes} bytes, where {self.size} are stored")
        return whole.reshape(-1).view(np.uint8).data


def pieces(model: memoryview, places: Sequence[Place], data: Sequence[memoryview]) -> list[Piece]:
    """The constants of a model without them; raises ValueError, LookupError or TypeError where these do not fit it."""
    starts = [start for start, *_ in places]
    if len(places) != len(data) or any(a > b for a, b in pairwise([0, *starts, model.nbytes])):
        raise ValueError(f"{len(data)} constants, and places for {len(places)} within {model.nbytes} bytes")
    found, before = [], 0
    for (start, *how), stored in zip(places, data, strict=True):
        found.append(Piece(start + before, _whole_size(stored.nbytes, *how), stored, tuple(how)))
        before += found[-1].size
    return found


def _whole_size(stored: int, kind: str, *how: Any) -> int:
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
        raise ValueError(f"{kind!r} takes no {how}")
    return stored * _WIDER[kind]


def put_together(model: memoryview, found: Sequence[Piece]) -> bytes:
    """The whole model; raises as `Piece.content` does."""
    first, *others = (rest for _, rest in between(model, found))
    behind = ((piece.content(), rest) for piece, rest in zip(found, others, strict=True))
    return b"".join((first, *chain.from_iterable(behind)))


def verify_apart(model: memoryview, found: Sequence[Piece], inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
    """Return what a model without its constants takes and gives; raises Malformed as `verifier.verify` does.

    Args:
        model: without the constants.
        found: these.
        inputs, outputs: the tensors that the compile specs name.
    """
    size = model.nbytes + sum(piece.size for piece in found)
    whole = memoryview(mmap.mmap(-1, max(1, size)))[:size]  # pages of the constants are never touched
    for start, rest in between(model, found):
        whole[start : start + rest.nbytes] = rest
    return verify(whole.toreadonly(), inputs, outputs, [(piece.start, piece.size) for piece in found])


def between(model: memoryview, found: Sequence[Piece]) -> Iterator[tuple[int, memoryview]]:
    """What lies before, between and behind the constants: where it begins in the whole model, and the bytes."""
    at = before = 0
    for piece in found:
        end = piece.start - before
        yield at + before, model[at:end]
        at, before = end, before + piece.size
    yield at + before, model[at:]
