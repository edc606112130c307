"""The compiled loop of attention to caches (groups, S, channels) of float32, float16, bfloat16 or int8 entries.

One core waits for memory most of the time. So the processor is told to fetch the values of a group while the scores are
computed, and the keys of the next group while the values are summed.

Numba has no 16-bit floats, so float16 is passed as int16, and bfloat16 as uint16. The loops run without Python's lock.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# Sums may be reordered, which vector instructions require. NaN and infinity keep their meaning.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
_LINE = 64  # bytes of a cache line


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
        return value if entry == types.float32 else builder.sitofp(value, ir.FloatType())

    return types.float32(entry), generate


@intrinsic
def _fetch_line(_: Any, entries: types.Array, row: types.Integer, channel: types.Integer) -> Any:
    """Request the cache line of an entry from memory, and do not wait."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, args[0])
        entry = cgutils.get_item_pointer(context, builder, kind, array, args[1:], wraparound=False)
        address, word = builder.bitcast(entry, ir.IntType(8).as_pointer()), ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], form)
        builder.call(fetch, [address, *(word(n) for n in (0, 2, 1))])  # to read, into the second cache, as data
        return context.get_dummy_value()

    return types.void(entries, types.intp, types.intp), generate


@_compiled
def _fetch(entries: Any, first: int, end: int) -> None:
    """Request rows of entries from memory, and do not wait."""
    for j in range(first, end):
        for c in range(0, entries.shape[1], _LINE // entries.itemsize):
            _fetch_line(entries, j, c)


@_compiled
def attend(
    query: Any,
    keys: Any,
    values: Any,
    key_scales: Any,
    value_scales: Any,
    first: int,
    end: int,
    unseen: Any,
    softcap: float,
    out: Any,
) -> None:
    """Attend to the entries from `first` to `end`: query (groups, m, E) -> (groups, m, V).

    The arguments are those of `CacheAttention.attend`, and None where they are absent.
    """
    groups, rows, _ = query.shape
    weights = np.empty((rows, end - first), np.float32)
    sums = np.empty(rows, np.float32)
    for g in range(groups):
        _scores(query[g], keys[g], values[g], first, end, weights)
        for i in range(rows):
            row = weights[i]
            if key_scales is not None:
                _multiply(row, key_scales[g, first:end])
            if softcap:
                for j in range(len(row)):
                    row[j] = softcap * math.tanh(row[j] / softcap)
            if unseen is not None:
                for j in range(len(row)):
                    if unseen[i % len(unseen), j]:
                        row[j] = -np.inf
            sums[i] = _exponentiate(row)
            if value_scales is not None:
                _multiply(row, value_scales[g, first:end])
        _weighted_sums(weights, values[g], keys[(g + 1) % groups], first, end, out[g])
        for i in range(rows):
            for c in range(out.shape[2]):
                out[g, i, c] /= sums[i]


@_compiled
def _multiply(row: Any, factors: Any) -> None:
    for j in range(len(row)):
        row[j] *= factors[j]


@_compiled
def _exponentiate(row: Any) -> Any:
    """Compute exp of scores minus the largest, in place; return the sum.

    exp(x) is 2^n * exp(x - n ln 2), with the Taylor polynomial of degree 6 for the second factor, within 2e-7. NaN
    stays NaN. Results that would be denormal are almost the smallest normal number.
    """
    a, b, c, d = row[0], row[0], row[0], row[0]
    in_fours = len(row) // 4 * 4
    for j in range(0, in_fours, 4):
        a, b = max(a, row[j]), max(b, row[j + 1])
        c, d = max(c, row[j + 2]), max(d, row[j + 3])
    for j in range(in_fours, len(row)):
        a = max(a, row[j])
    largest = max(a, b, c, d)
    total = np.float32(0)
    for j in range(len(row)):
        x = max(row[j] - largest, np.float32(-87))
        n = np.int32(x * np.float32(1.44269504) - np.float32(0.5))
        x -= np.float32(n) * np.float32(0.69314718)
        y = x * np.float32(1 / 720) + np.float32(1 / 120)
        y = y * x + np.float32(1 / 24)
        y = y * x + np.float32(1 / 6)
        y = y * x + np.float32(0.5)
        y = y * x + np.float32(1)
        y = y * x + np.float32(1)
        row[j] = y * _wide(np.uint16((n + 127) << 7))  # 2^n, as bfloat16
        total += row[j]
    return total


@_compiled
def _scores(query: Any, keys: Any, values: Any, first: int, end: int, out: Any) -> None:
    """Multiply query (m, E) with the keys from `first` to `end` -> (m, end - first).

    Two rows at a time read each key once. The first ones fetch the values, too.
    """
    rows = len(query)
    for i in range(0, rows - 1, 2):
        _scores_of_two(query[i], query[i + 1], keys, values, i == 0, first, end, out[i], out[i + 1])
    if rows % 2:
        _scores_of_one(query[rows - 1], keys, values, rows == 1, first, end, out[rows - 1])


@_compiled
def _scores_of_two(
    a: Any, b: Any, keys: Any, values: Any, is_fetched: bool, first: int, end: int, out_a: Any, out_b: Any
) -> None:
    """Multiply two rows with four keys at a time: the processor adds to eight independent sums in parallel."""
    in_fours = first + (end - first) // 4 * 4
    for j in range(first, in_fours, 4):
        if is_fetched:
            _fetch(values, j, j + 4)
        a0, a1, a2, a3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        b0, b1, b2, b3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for c in range(len(a)):
            k0, k1 = _wide(keys[j, c]), _wide(keys[j + 1, c])
            k2, k3 = _wide(keys[j + 2, c]), _wide(keys[j + 3, c])
            a0 += a[c] * k0
            a1 += a[c] * k1
            a2 += a[c] * k2
            a3 += a[c] * k3
            b0 += b[c] * k0
            b1 += b[c] * k1
            b2 += b[c] * k2
            b3 += b[c] * k3
        n = j - first
        out_a[n], out_a[n + 1], out_a[n + 2], out_a[n + 3] = a0, a1, a2, a3
        out_b[n], out_b[n + 1], out_b[n + 2], out_b[n + 3] = b0, b1, b2, b3
    _scores_of_one(a, keys, values, is_fetched, in_fours, end, out_a[in_fours - first :])
    _scores_of_one(b, keys, values, False, in_fours, end, out_b[in_fours - first :])


@_compiled
def _scores_of_one(row: Any, keys: Any, values: Any, is_fetched: bool, first: int, end: int, out: Any) -> None:
    for j in range(first, end):
        if is_fetched:
            _fetch(values, j, j + 1)
        total = np.float32(0)
        for c in range(len(row)):
            total += row[c] * _wide(keys[j, c])
        out[j - first] = total


@_compiled
def _weighted_sums(weights: Any, values: Any, next_keys: Any, first: int, end: int, out: Any) -> None:
    """Sum the values from `first` to `end` by weights (m, end - first) -> (m, V).

    Two rows at a time read each value once, and four values at a time read and write each sum once. The first ones
    fetch the keys of the next group, too.
    """
    rows, count = weights.shape
    in_fours = count // 4 * 4
    out[:] = 0
    for i in range(0, rows - 1, 2):
        _add_fours_to_two(weights[i], weights[i + 1], values, next_keys, i == 0, first, out[i], out[i + 1])
    if rows % 2:
        _add_fours_to_one(weights[rows - 1], values, next_keys, rows == 1, first, out[rows - 1])
    for i in range(rows):
        for j in range(in_fours, count):
            for c in range(values.shape[1]):
                out[i, c] += weights[i, j] * _wide(values[first + j, c])


@_compiled
def _add_fours_to_two(
    a: Any, b: Any, values: Any, next_keys: Any, is_fetched: bool, first: int, sum_a: Any, sum_b: Any
) -> None:
    for n in range(0, len(a) // 4 * 4, 4):
        j = first + n
        if is_fetched:
            _fetch(next_keys, j, j + 4)
        a0, a1, a2, a3 = a[n], a[n + 1], a[n + 2], a[n + 3]
        b0, b1, b2, b3 = b[n], b[n + 1], b[n + 2], b[n + 3]
        for c in range(values.shape[1]):
            v0, v1 = _wide(values[j, c]), _wide(values[j + 1, c])
            v2, v3 = _wide(values[j + 2, c]), _wide(values[j + 3, c])
            sum_a[c] += a0 * v0 + a1 * v1 + (a2 * v2 + a3 * v3)
            sum_b[c] += b0 * v0 + b1 * v1 + (b2 * v2 + b3 * v3)


@_compiled
def _add_fours_to_one(a: Any, values: Any, next_keys: Any, is_fetched: bool, first: int, sums: Any) -> None:
    for n in range(0, len(a) // 4 * 4, 4):
        j = first + n
        if is_fetched:
            _fetch(next_keys, j, j + 4)
        a0, a1, a2, a3 = a[n], a[n + 1], a[n + 2], a[n + 3]
        for c in range(values.shape[1]):
            low = a0 * _wide(values[j, c]) + a1 * _wide(values[j + 1, c])
            sums[c] += low + (a2 * _wide(values[j + 2, c]) + a3 * _wide(values[j + 3, c]))
