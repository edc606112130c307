"""Large constants of a model apart from it: partitions and methods share them, stored as small as nothing is lost.

16 bits hold the floats of programs in float16 and bfloat16, 4 bits small integers; of floats that a quantized program
makes of integers, run by run with a scale of each run, these are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from delegate.backends.xnnpack.model_file import ModelFile
from delegate.program.raw import array_over
from delegate.program.small_integers import is_small, packed, unpacked
from delegate.program.source import let_go

if TYPE_CHECKING:
    from delegate.backends.xnnpack.quantized import Coded

LEAST = 4096  # bytes; what is smaller stays in the model
LARGE = 1 << 24  # bytes of constants that are worth a file of their own

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
    if bits not in (4, 8) or size <= 0 or count <= 0 or count % size or count % 2:
        raise ValueError(f"{count} integers of {bits} bits in runs of {size}")
    scales = array_over(stored, np.dtype("<f4"), (count // size, 1))
    at = scales.nbytes
    raw = array_over(stored, np.dtype("u1" if bits == 4 else "i1"), (count * bits // 8,), at)
    values = (unpacked(raw) if bits == 4 else raw).astype(np.float32).reshape(-1, size)
    if with_zeros:
        values -= array_over(stored, np.dtype("i1"), (count // size, 1), at + raw.nbytes)
    values *= scales
    return values


def put_together(model: memoryview, places: Sequence[Place], data: Sequence[memoryview]) -> bytes | ModelFile:
    """The whole model; raises ValueError, LookupError or TypeError where places and data do not fit together.

    A large one is a file in memory, where the machine has these.
    """
    if sum(d.nbytes for d in data) >= LARGE:
        with suppress(OSError):
            made = ModelFile(_parts(model, places, data))
            let_go(data[0])  # and with it the whole program file, whose pages count as this process's memory
            return made
    return b"".join(_parts(model, places, data))


def _parts(model: memoryview, places: Sequence[Place], data: Sequence[memoryview]) -> Iterator[Any]:
    starts = [start for start, *_ in places]
    if len(places) != len(data) or any(a > b for a, b in pairwise([0, *starts, model.nbytes])):
        raise ValueError(f"{len(data)} constants, and places for {len(places)} within {model.nbytes} bytes")
    at = 0
    for (start, kind, *how), stored in zip(places, data, strict=True):
        yield model[at:start]
        yield _whole(stored, kind, *how).reshape(-1).view(np.uint8).data
        at = start
    yield model[at:]


def _whole(stored: memoryview, kind: str, *how: Any) -> Array:
    if kind == _RUNS:
        return _from_runs(stored, *how)
    dtype, whole = _STORED[kind]
    return whole(array_over(stored, dtype, (stored.nbytes // dtype.itemsize,), 0))
