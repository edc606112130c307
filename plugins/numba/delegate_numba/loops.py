"""The compiled loops over caches (groups, S, channels) of float16, bfloat16 or int8 entries.

Numba has no 16-bit floats, so float16 is passed as int16, and bfloat16 as uint16. The loops run without Python's lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

# Sums may be reordered, which vector instructions require. NaN and infinity keep their meaning.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}


def _compiled(function: Any) -> Any:
    """Return a function that Numba compiles in its first call, and stores if there is a folder for it."""
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no folder is writable
        return numba.njit(**_OPTIONS)(function)


@intrinsic
def _wide(_: Any, entry: types.Type) -> Any:
    """Return an entry as float32."""

    def generate(_: Any, builder: ir.IRBuilder, __: Any, args: Any) -> Any:
        (value,) = args
        if entry == types.int16:  # float16
            return builder.fpext(builder.bitcast(value, ir.HalfType()), ir.FloatType())
        if entry == types.uint16:  # bfloat16: the upper half of a float32
            word = ir.IntType(32)
            return builder.bitcast(builder.shl(builder.zext(value, word), ir.Constant(word, 16)), ir.FloatType())
        return builder.sitofp(value, ir.FloatType())

    return types.float32(entry), generate


@_compiled
def scores(query: Any, keys: Any, first: int, end: int, out: Any) -> None:
    """Multiply query (groups, m, E) with the keys from `first` to `end` -> (groups, m, end - first).

    Two rows at a time read each key once.
    """
    groups, rows, channels = query.shape
    for g in range(groups):
        for i in range(0, rows - 1, 2):
            for j in range(first, end):
                one, other = np.float32(0), np.float32(0)
                for c in range(channels):
                    key = _wide(keys[g, j, c])
                    one += query[g, i, c] * key
                    other += query[g, i + 1, c] * key
                out[g, i, j - first], out[g, i + 1, j - first] = one, other
        if rows % 2:
            for j in range(first, end):
                one = np.float32(0)
                for c in range(channels):
                    one += query[g, rows - 1, c] * _wide(keys[g, j, c])
                out[g, rows - 1, j - first] = one


@_compiled
def weighted_sums(weights: Any, values: Any, first: int, end: int, out: Any) -> None:
    """Sum the values from `first` to `end` by weights (groups, m, end - first) -> (groups, m, V).

    Four values at a time read and write each sum once.
    """
    groups, rows, count = weights.shape
    in_fours = first + count // 4 * 4
    channels = values.shape[2]
    for g in range(groups):
        for i in range(rows):
            sums, row = out[g, i], weights[g, i]
            sums[:] = 0
            for j in range(first, in_fours, 4):
                a, b, c, d = row[j - first], row[j - first + 1], row[j - first + 2], row[j - first + 3]
                for k in range(channels):
                    low = a * _wide(values[g, j, k]) + b * _wide(values[g, j + 1, k])
                    sums[k] += low + c * _wide(values[g, j + 2, k]) + d * _wide(values[g, j + 3, k])
            for j in range(in_fours, end):
                for k in range(channels):
                    sums[k] += row[j - first] * _wide(values[g, j, k])
