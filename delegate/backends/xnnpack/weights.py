"""Large constants of a model apart from it: partitions and methods share them, and 16 bits are stored where these hold
them exactly, as they do of programs in float16 and bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from delegate.backends.xnnpack.model_file import ModelFile
from delegate.program.raw import array_over
from delegate.program.source import let_go

LEAST = 4096  # bytes; what is smaller stays in the model
LARGE = 1 << 24  # bytes of constants that are worth a file of their own

Array = np.ndarray[Any, np.dtype[Any]]
Place = tuple[int, str]  # where a constant goes in the model without any, and how it is stored


def _from_bfloat16(bits: Array) -> Array:
    return bits.astype(np.uint32) << np.uint32(16)


# How a constant is stored -> the elements that are, and what makes those of the model of them.
_STORED: Mapping[str, tuple[np.dtype[Any], Callable[[Array], Array]]] = {
    "": (np.dtype("u1"), lambda raw: raw),
    "float16": (np.dtype("<f2"), lambda half: half.astype("<f4")),
    "bfloat16": (np.dtype("<u2"), _from_bfloat16),
}


def take_apart(model: bytes, constants: Iterable[tuple[int, Array]]) -> tuple[bytes, list[Place], list[memoryview]]:
    """A model without its large constants; where they go, and what is stored of them.

    Args:
        model: the whole.
        constants: where each begins in it, and what it is.
    """
    rest, places, data = [], list[Place](), list[memoryview]()
    at = left = 0
    for start, array in sorted(constants, key=lambda found: found[0]):
        if array.nbytes >= LEAST:
            rest.append(model[at:start])
            left += start - at
            at = start + array.nbytes
            kind, stored = _halved(array)
            places.append((left, kind))
            data.append(stored.reshape(-1).view(np.uint8).data.toreadonly())
    return b"".join((*rest, model[at:])), places, data


def _halved(array: Array) -> tuple[str, Array]:
    """A constant in 16 bits per element where nothing is lost, and how that is called."""
    if array.dtype == np.float32:
        bits = array.reshape(-1).view(np.uint32)
        if not (bits & np.uint32(0xFFFF)).any():
            return "bfloat16", (bits >> np.uint32(16)).astype(np.uint16)
        with np.errstate(over="ignore", invalid="ignore"):
            half = array.astype(np.float16)
        if np.array_equal(half.astype(np.float32).reshape(-1).view(np.uint32), bits):
            return "float16", half
    return "", array


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
    starts = [start for start, _ in places]
    if len(places) != len(data) or any(a > b for a, b in pairwise([0, *starts, model.nbytes])):
        raise ValueError(f"{len(data)} constants, and places for {len(places)} within {model.nbytes} bytes")
    at = 0
    for (start, kind), stored in zip(places, data, strict=True):
        dtype, whole = _STORED[kind]
        yield model[at:start]
        yield whole(array_over(stored, dtype, (stored.nbytes // dtype.itemsize,), 0)).data
        at = start
    yield model[at:]
