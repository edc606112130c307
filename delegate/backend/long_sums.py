"""Sums of many floats in stages, for libraries that add one number after the other.

A running sum in float32 loses digits with each number, and stops at 2**24, while torch adds up in pairs. So a long
dimension becomes two, which are reduced one after the other: a mean is the mean of means, and a norm the norm of norms.

A backend whose own lowerings know the order in memory calls `reduce_in_stages`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

LONG = 1 << 10  # numbers that may be added one after the other
LONG_ROW = 1 << 13  # neighbors in memory: libraries add as many of them at once as a register holds
PIECE = 1 << 8
T = TypeVar("T")
Stage = Callable[[T, list[int], bool], T]


def piece_of(size: int) -> int:
    """Return how many elements of a long dimension are added first: a divisor if one is of moderate size."""
    aim = min(PIECE, math.isqrt(size))
    divisors = [d for d in range(aim // 4, 4 * aim + 1) if size % d == 0]
    return min(divisors, key=lambda d: abs(math.log(d / aim)), default=PIECE)


def is_long(shape: Sequence[Any], dims: Sequence[int], neighbors: bool | None = None) -> bool:
    """Return true for a reduction that is computed in stages.

    Args:
        shape: sizes of the operand; a dynamic size counts as long beside others, which it is reduced apart from.
        dims: the reduced dimensions, none negative.
        neighbors: the reduced elements are neighbors in memory; None: if only the last dimension is reduced.
    """
    sizes = [shape[dim] for dim in dims]
    if not all(isinstance(size, int) for size in sizes):
        return len(sizes) > 1
    neighbors = list(dims) == [len(shape) - 1] if neighbors is None else neighbors
    return bool(math.prod(sizes) > (LONG_ROW if neighbors else LONG))


def reduce_in_stages(
    x: T,
    dims: Sequence[int],
    keepdim: bool,
    *,
    shape_of: Callable[[T], Sequence[Any]],
    split: Callable[[T, int], T],
    stage: Stage[T],
) -> T:
    """Return a reduction of many elements, by an operation for which reducing the reduced parts reduces the whole.

    Args:
        x: the operand: a node of a graph, or a value of a backend's builder.
        dims: the reduced dimensions in ascending order, none negative.
        keepdim: reduced dimensions stay, with the size 1.
        shape_of: returns the shape of an operand.
        split: splits a dimension into pieces of `piece_of` elements, with zeros in the last one.
        stage: reduces dimensions at once, and returns the result.
    """
    for dim in dims:
        while isinstance(size := shape_of(x)[dim], int) and size > LONG:
            x = stage(split(x, dim), [dim + 1], False)
    if is_long(shape_of(x), dims, neighbors=False):
        for dim in reversed(dims[1:]):
            x = stage(x, [dim], True)
    return stage(x, list(dims), keepdim)


def correction_of_mean(shape: Sequence[Any], dims: Sequence[int]) -> float:
    """Return the factor of a mean in stages, which counts the zeros in the last pieces too."""
    return math.prod(_multiply_pieces(size) / size for dim in dims if isinstance(size := shape[dim], int))


def _multiply_pieces(size: int) -> int:
    """Return the product of all pieces of a long dimension."""
    count = 1
    while size > LONG:
        piece = piece_of(size)
        count, size = count * piece, -(-size // piece)
    return count * size
