"""The blob: TVM's library, then the weights, which are arguments of every call.

The layout of the blob is in `compile_specs`, as plain JSON: "library" (bytes) and "weights" (dtype, shape, offset).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegate.program.dtypes import DType
from delegate.program.raw import array_over
from delegate.program.segments import align
from delegate.runtime.backend import Array


@dataclass(frozen=True)
class Weight:
    """A constant of a region; `array` has the bits of a dtype that NumPy does not have."""

    dtype: DType
    array: Array


def pack(library: bytes, weights: Sequence[Weight]) -> tuple[bytes, dict[str, Any]]:
    """Return the blob, and its entries of compile_specs."""
    parts, rows, end = [library], [], len(library)
    for weight in weights:
        start = align(end)
        parts += [bytes(start - end), weight.array.tobytes()]
        rows.append([weight.dtype.name, list(weight.array.shape), start])
        end = start + weight.array.nbytes
    return b"".join(parts), {"library": len(library), "weights": rows, "bytes": end}


def unpack(blob: memoryview, specs: Mapping[str, Any]) -> tuple[memoryview, tuple[Weight, ...]]:
    """Return the library and the weights, as views of the blob.

    Raises:
        LookupError, TypeError, ValueError: specs and blob do not fit together.
    """
    if blob.nbytes != specs["bytes"] or not 0 < specs["library"] <= blob.nbytes:
        raise ValueError(f"the blob has {blob.nbytes} bytes, and its compile specs say {specs['bytes']}")
    return blob[: specs["library"]], tuple(_weight(blob, *row) for row in specs["weights"])


def _weight(blob: memoryview, name: str, shape: Sequence[int], offset: int) -> Weight:
    dtype = DType[name]
    return Weight(dtype, array_over(blob, dtype.numpy, shape, offset))
