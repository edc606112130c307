"""Packing of int8 numbers from -8 to 7, two to a byte, for files."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def is_small(values: Array) -> bool:
    """Return True if these numbers, at least one, can be packed."""
    return values.size % 2 == 0 and bool(values.min() >= -8 and values.max() <= 7)


def packed(values: Array) -> Array:
    """Pack two numbers into a byte, the first in the lower half. The last of an odd count has its own byte."""
    flat = values.reshape(-1).view(np.uint8) & 15
    flat = np.pad(flat, (0, flat.size % 2))
    return np.asarray(flat[0::2] | (flat[1::2] << 4), np.uint8)


def unpacked(pairs: Array) -> Array:
    """Unpack the result of `packed`."""
    both = np.stack((pairs << np.uint8(4), pairs), -1).view(np.int8)
    return np.right_shift(both, 4, out=both).reshape(-1)
