"""int8 numbers from -8 to 7, which lie two to a byte in files."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def is_small(values: Array) -> bool:
    """Whether these numbers, at least one, can be packed."""
    return values.size % 2 == 0 and bool(values.min() >= -8 and values.max() <= 7)


def packed(values: Array) -> Array:
    """Two numbers to a byte, the first in the lower half; an odd one has a byte of its own."""
    flat = values.reshape(-1).view(np.uint8) & 15
    flat = np.pad(flat, (0, flat.size % 2))
    return np.asarray(flat[0::2] | (flat[1::2] << 4), np.uint8)


def unpacked(pairs: Array) -> Array:
    """The reverse of `packed`."""
    both = np.stack((pairs << np.uint8(4), pairs), -1).view(np.int8)
    return np.right_shift(both, 4, out=both).reshape(-1)
