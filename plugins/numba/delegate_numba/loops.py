"""The compiled loops of attention to caches of float32, float16, bfloat16 or int8 entries, and of writes to them.

One core waits for memory most of the time. So in long caches the processor is told to fetch the values of a block
while its scores are computed, and the next keys while the values are added.

Numba has no 16-bit floats, so float16 is passed as int16, and bfloat16 as uint16, and the loops run without Python's
lock.
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
_BLOCK = 128  # entries whose scores are computed before their values are added


def _inner(function: Any) -> Any:
    """Return a function that Numba compiles into those that call it."""
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function)


def _compile(function: Any) -> Any:
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
def _narrow(_: Any, array: types.Array, value: types.Float) -> Any:
    """Return a float32 as an entry of an array, rounded to the nearest; bfloat16 is not supported."""
    entry = array.dtype

    def generate(_: Any, builder: ir.IRBuilder, __: Any, args: Any) -> Any:
        if entry == types.int16:  # float16
            return builder.bitcast(builder.fptrunc(args[1], ir.HalfType()), ir.IntType(16))
        return args[1] if entry == types.float32 else builder.fptosi(args[1], ir.IntType(8))

    return entry(array, value), generate


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


@_inner
def _fetch(entries: Any, first: int, end: int) -> None:
    """Request rows of entries from memory, and do not wait."""
    for j in range(first, end):
        for c in range(0, entries.shape[1], _LINE // entries.itemsize):
            _fetch_line(entries, j, c)


@_compile
def extent(positions: Any, rows: Any, window: int, conversations: int, capacity: int) -> Any:
    """Measure a call: the largest number of adjacent queries of one conversation, and the entries that all read.

    Returns:
        The two numbers; (-1, -1) if the cache lacks a position or a conversation.
    """
    most, total, start = 0, 0, 0
    while start < len(rows):
        stop, first, end = _run(positions, rows, start, window)
        if first < 0 or end > capacity or rows[start] < 0 or rows[start] >= conversations:
            return -1, -1
        most, total, start = max(most, (stop - start) * positions.shape[1]), total + end - first, stop
    return most, total


@_inner
def _run(positions: Any, rows: Any, start: int, window: int) -> Any:
    """Return the end of the sequences from `start` on of one conversation, and the first entry and the end that they
    read; the first is negative if a position is."""
    lowest, highest, stop = positions[start, 0], positions[start, 0], start
    while stop < len(rows) and rows[stop] == rows[start]:
        for here in positions[stop]:
            lowest, highest = min(lowest, here), max(highest, here)
        stop += 1
    return stop, lowest if lowest < 0 else max(0, lowest - window + 1) if window else 0, highest + 1


@_compile
def attend(
    query: Any,
    keys: Any,
    values: Any,
    positions: Any,
    rows: Any,
    key_scales: Any,
    value_scales: Any,
    scale: float,
    window: int,
    softcap: float,
    first_group: int,
    end_group: int,
    out: Any,
) -> None:
    """Compute `delegate.cached_attention` of some groups. Its arguments fit together, and `extent` accepts them."""
    heads = query.shape[1] // keys.shape[1]
    start = 0
    while start < len(query):
        stop, first, end = _run(positions, rows, start, window)
        count = (stop - start) * heads * query.shape[2]
        some, sums = np.empty((count, query.shape[3]), np.float32), np.empty((count, out.shape[3]), np.float32)
        where = np.empty(count, np.int64)
        for group in range(first_group, end_group):
            i = 0
            for b in range(start, stop):
                for head in range(group * heads, (group + 1) * heads):
                    for n in range(query.shape[2]):
                        where[i] = positions[b, n]
                        for c in range(query.shape[3]):
                            some[i, c] = query[b, head, n, c] * np.float32(scale)
                        i += 1
            places = rows[start], group, first, end
            _attend_group(some, where, keys, values, places, key_scales, value_scales, window, softcap, sums)
            i = 0
            for b in range(start, stop):
                for head in range(group * heads, (group + 1) * heads):
                    for n in range(query.shape[2]):
                        for c in range(out.shape[3]):
                            out[b, head, n, c] = sums[i, c]
                        i += 1
        start = stop


@_inner
def _attend_group(
    query: Any,
    where: Any,
    keys: Any,
    values: Any,
    places: Any,
    key_scales: Any,
    value_scales: Any,
    window: int,
    softcap: float,
    out: Any,
) -> None:
    """Attend to the entries at `places` (row, group, first, end): query (m, E) -> (m, V), at positions (m).

    The softmax is computed block by block, and a larger score corrects the sums of the blocks before it, so each entry
    is read once.
    """
    row, group, first, end = places
    own_keys, own_values, next_keys = keys[row, group], values[row, group], keys[row, (group + 1) % keys.shape[1]]
    weights = np.empty((len(query), _BLOCK), np.float32)
    largest, totals = np.empty(len(query), np.float32), np.empty(len(query), np.float32)
    for i in range(len(query)):
        largest[i], totals[i] = -np.inf, 0
        _fill(out[i], 0, out.shape[1], 0)
    is_fetched = end - first > 2 * _BLOCK
    for start in range(first, end, _BLOCK):
        stop = min(start + _BLOCK, end)
        _scores(query, own_keys, own_values, start, stop, is_fetched, weights)
        for i in range(len(query)):
            scores = weights[i, : stop - start]
            if key_scales is not None:
                _multiply(scores, key_scales[row, group, start:stop])
            if softcap:
                _cap(scores, softcap)
            _fill(scores, max(0, where[i] + 1 - start), stop - start, -np.inf)
            if window:
                _fill(scores, 0, min(where[i] + 1 - window, stop) - start, -np.inf)
            found = _largest(scores)
            if found == -np.inf:  # the query sees nothing of this block
                _fill(scores, 0, stop - start, 0)
                continue
            new = largest[i] if found <= largest[i] else found  # NaN is kept
            if new != largest[i]:
                factor = np.exp(largest[i] - new)
                totals[i] *= factor
                _scale(out[i], factor)
                largest[i] = new
            totals[i] += _exponentiate(scores, new)
            if value_scales is not None:
                _multiply(scores, value_scales[row, group, start:stop])
        if stop < end:
            _add_weighted(weights, own_values, start, stop, own_keys, stop, is_fetched, out)
        else:
            _add_weighted(weights, own_values, start, stop, next_keys, first, is_fetched, out)
    for i in range(len(query)):
        _scale(out[i], 1 / totals[i])


@_inner
def _fill(row: Any, first: int, end: int, value: float) -> None:
    for j in range(first, end):
        row[j] = value


@_inner
def _scale(row: Any, factor: Any) -> None:
    for j in range(len(row)):
        row[j] *= factor


@_inner
def _multiply(row: Any, factors: Any) -> None:
    for j in range(len(row)):
        row[j] *= factors[j]


@_inner
def _cap(row: Any, softcap: float) -> None:
    for j in range(len(row)):
        row[j] = softcap * math.tanh(row[j] / softcap)


@_inner
def _largest(row: Any) -> Any:
    a, b, c, d = row[0], row[0], row[0], row[0]
    in_fours = len(row) // 4 * 4
    for j in range(0, in_fours, 4):
        a, b = max(a, row[j]), max(b, row[j + 1])
        c, d = max(c, row[j + 2]), max(d, row[j + 3])
    for j in range(in_fours, len(row)):
        a = max(a, row[j])
    return max(a, b, c, d)


@_inner
def _exponentiate(row: Any, largest: Any) -> Any:
    """Compute exp of scores minus the largest, in place; return the sum.

    exp(x) is 2^n * exp(x - n ln 2), with the Taylor polynomial of degree 6 for the second factor, within 2e-7. NaN
    stays NaN. Results that would be denormal are almost the smallest normal number.
    """
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


@_inner
def _scores(query: Any, keys: Any, values: Any, first: int, end: int, is_fetched: bool, out: Any) -> None:
    """Multiply query (m, E) with the keys from `first` to `end` -> (m, end - first).

    Two rows at a time read each key once. If values are to be fetched, the first rows do so.
    """
    rows = len(query)
    for i in range(0, rows - 1, 2):
        _scores_of_two(query[i], query[i + 1], keys, values, is_fetched and i == 0, first, end, out[i], out[i + 1])
    if rows % 2:
        _scores_of_one(query[rows - 1], keys, values, is_fetched and rows == 1, first, end, out[rows - 1])


@_inner
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


@_inner
def _scores_of_one(row: Any, keys: Any, values: Any, is_fetched: bool, first: int, end: int, out: Any) -> None:
    for j in range(first, end):
        if is_fetched:
            _fetch(values, j, j + 1)
        total = np.float32(0)
        for c in range(len(row)):
            total += row[c] * _wide(keys[j, c])
        out[j - first] = total


@_inner
def _add_weighted(
    weights: Any, values: Any, first: int, end: int, next_keys: Any, next_first: int, is_fetched: bool, out: Any
) -> None:
    """Add the values from `first` to `end` by weights (m, at least end - first) to sums (m, V).

    Two rows at a time read each value once, and four values at a time read and write each sum once. If the
    next keys are to be fetched, the first rows fetch as many.
    """
    rows, ahead = len(weights), next_first - first
    for i in range(0, rows - 1, 2):
        _add_to_two(
            weights[i], weights[i + 1], values, first, end, next_keys, ahead, is_fetched and i == 0, out[i], out[i + 1]
        )
    if rows % 2:
        _add_to_one(weights[rows - 1], values, first, end, next_keys, ahead, is_fetched and rows == 1, out[rows - 1])


@_inner
def _add_to_two(
    a: Any,
    b: Any,
    values: Any,
    first: int,
    end: int,
    next_keys: Any,
    ahead: int,
    is_fetched: bool,
    sum_a: Any,
    sum_b: Any,
) -> None:
    in_fours = first + (end - first) // 4 * 4
    for j in range(first, in_fours, 4):
        if is_fetched:
            _fetch(next_keys, ahead + j, ahead + j + 4)
        n = j - first
        a0, a1, a2, a3 = a[n], a[n + 1], a[n + 2], a[n + 3]
        b0, b1, b2, b3 = b[n], b[n + 1], b[n + 2], b[n + 3]
        for c in range(values.shape[1]):
            v0, v1 = _wide(values[j, c]), _wide(values[j + 1, c])
            v2, v3 = _wide(values[j + 2, c]), _wide(values[j + 3, c])
            sum_a[c] += a0 * v0 + a1 * v1 + (a2 * v2 + a3 * v3)
            sum_b[c] += b0 * v0 + b1 * v1 + (b2 * v2 + b3 * v3)
    for j in range(in_fours, end):
        for c in range(values.shape[1]):
            value = _wide(values[j, c])
            sum_a[c] += a[j - first] * value
            sum_b[c] += b[j - first] * value


@_inner
def _add_to_one(
    a: Any, values: Any, first: int, end: int, next_keys: Any, ahead: int, is_fetched: bool, sums: Any
) -> None:
    in_fours = first + (end - first) // 4 * 4
    for j in range(first, in_fours, 4):
        if is_fetched:
            _fetch(next_keys, ahead + j, ahead + j + 4)
        n = j - first
        a0, a1, a2, a3 = a[n], a[n + 1], a[n + 2], a[n + 3]
        for c in range(values.shape[1]):
            low = a0 * _wide(values[j, c]) + a1 * _wide(values[j + 1, c])
            sums[c] += low + (a2 * _wide(values[j + 2, c]) + a3 * _wide(values[j + 3, c]))
    for j in range(in_fours, end):
        for c in range(values.shape[1]):
            sums[c] += a[j - first] * _wide(values[j, c])


@_compile
def write(entries: Any, new: Any, positions: Any, rows: Any) -> bool:
    """Write new entries (B, G, L, E) to a cache (R, G, S, E); return False, and write nothing, if it lacks a place."""
    for b in range(len(rows)):
        if rows[b] < 0 or rows[b] >= len(entries):
            return False
        for n in range(positions.shape[1]):
            if positions[b, n] < 0 or positions[b, n] >= entries.shape[2]:
                return False
    for b in range(len(rows)):
        for group in range(new.shape[1]):
            for n in range(positions.shape[1]):
                for c in range(new.shape[3]):
                    entries[rows[b], group, positions[b, n], c] = _narrow(entries, new[b, group, n, c])
    return True
