"""The data types of tensors: one row per type, and the packing of small int8 numbers for files."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np


class DType(Enum):
    """A tensor element type; the value is its stable code in program files (torch's ScalarType numbering).

    bfloat16 has no NumPy type: its arrays hold the raw 16 bits as uint16.
    """

    uint8 = 0
    int8 = 1
    int16 = 2
    int32 = 3
    int64 = 4
    float16 = 5
    float32 = 6
    float64 = 7
    complex64 = 9
    complex128 = 10
    bool = 11
    bfloat16 = 15
    uint16 = 27
    uint32 = 28
    uint64 = 29

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type of its arrays."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """The bytes per element."""
        return _NUMPY[self].itemsize

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> DType:
        """Return the type that a NumPy dtype stores; raise KeyError if there is none."""
        return _FROM_NUMPY[dtype]

    def __repr__(self) -> str:
        return self.name


_NUMPY: dict[DType, np.dtype[Any]] = {t: np.dtype("uint16" if t is DType.bfloat16 else t.name) for t in DType}
_FROM_NUMPY = {n: t for t, n in _NUMPY.items() if t is not DType.bfloat16}


Array = np.ndarray[Any, np.dtype[Any]]


def is_small(values: Array) -> bool:
    """Return True if these numbers, at least one, can be packed."""
    return values.size % 2 == 0 and bool(values.min() >= -8 and values.max() <= 7)


def pack_pairs(values: Array) -> Array:
    """Pack two numbers into a byte, the first in the lower half. The last of an odd count has its own byte."""
    flat = values.reshape(-1).view(np.uint8)
    pairs = flat[0::2] & np.uint8(15)
    pairs[: flat.size // 2] |= flat[1::2] << np.uint8(4)
    return pairs


def unpack_pairs(pairs: Array) -> Array:
    """Unpack the result of `pack_pairs`."""
    both = np.stack((pairs << np.uint8(4), pairs), -1).view(np.int8)
    return np.right_shift(both, 4, out=both).reshape(-1)
