"""Dimension orders: the order of logical dimensions in memory, and the effect of a reshape on it. Pure functions.

An order is a permutation: physical axis i holds logical dimension order[i]. Row-major is (0, 1, 2, ...); a feature map
[N, C, H, W] stored as NHWC has the order (0, 2, 3, 1). Sizes may be symbolic (torch.SymInt).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Order = tuple[int, ...]
Size = Any  # int or torch.SymInt

NHWC: Order = (0, 2, 3, 1)
NWC: Order = (0, 2, 1)


def row_major(rank: int) -> Order:
    """Return the order of a contiguous tensor."""
    return tuple(range(rank))


def physical(shape: Sequence[Size], order: Order) -> tuple[Size, ...]:
    """Return sizes in memory order.

    >>> physical((1, 3, 8, 9), NHWC)
    (1, 8, 9, 3)
    """
    return tuple(shape[d] for d in order)


def permute(order: Order, dims: Sequence[int]) -> Order:
    """Return the order of the same memory after `torch.permute(x, dims)`.

    >>> permute((0, 2, 3, 1), (0, 2, 3, 1))
    (0, 1, 2, 3)
    """
    new = {old: position for position, old in enumerate(dims)}
    return tuple(new[d] for d in order)


def transposition(order: Order, target: Order) -> tuple[int, ...]:
    """Return the permutation of physical axes (TRANSPOSE's) from one order to another."""
    return tuple(order.index(d) for d in target)


def is_one(size: Size) -> bool:
    """Return true if a size is the plain number 1."""
    return isinstance(size, int) and size == 1


def same_memory(shape: Sequence[Size], order: Order, other: Order) -> bool:
    """Return true if two orders differ by dimensions of size 1 only, so elements have the same places.

    >>> same_memory((1, 8, 1, 1), (0, 1, 2, 3), NHWC)
    True
    """
    return [d for d in order if not is_one(shape[d])] == [d for d in other if not is_one(shape[d])]


def groups(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Pair runs of old dimensions with runs of new ones of the same number of elements, as finely as possible.

    Dimensions of size 1 are omitted; the result is None if symbolic sizes hide the pairing.

    >>> groups((2, 3, 4, 5), (6, 20))
    [([0, 1], [0]), ([2, 3], [1])]
    """
    left = [d for d, s in enumerate(old) if not is_one(s)]
    right = [d for d, s in enumerate(new) if not is_one(s)]
    pairs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = [left[i]], [right[j]]
        x, y = old[left[i]], new[right[j]]
        i, j = i + 1, j + 1
        while not equal(x, y):
            if not isinstance(x, int) or not isinstance(y, int):
                # A symbolic size: everything up to the next dimensions that are equal on both sides is one group.
                rest = (left[i:], right[j:])
                tail = _equal_tail(old, new, *rest)
                a += rest[0][: len(rest[0]) - tail]
                b += rest[1][: len(rest[1]) - tail]
                i, j = len(left) - tail, len(right) - tail
                break
            if x < y and i < len(left):
                a.append(left[i])
                x, i = x * old[left[i]], i + 1
            elif y < x and j < len(right):
                b.append(right[j])
                y, j = y * new[right[j]], j + 1
            else:
                return None
        pairs.append((a, b))
    return pairs if i == len(left) and j == len(right) else None


def equal(x: Size, y: Size) -> bool:
    """Return true if two sizes are the same, without adding a guard on symbolic ones."""
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    return not isinstance(x, int) and not isinstance(y, int) and str(x) == str(y)


def _equal_tail(old: Sequence[Size], new: Sequence[Size], left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    while count < min(len(left), len(right)) and equal(old[left[-1 - count]], new[right[-1 - count]]):
        count += 1
    return count


def reshape(old: Sequence[Size], new: Sequence[Size], order: Order) -> Order | None:
    """Return the order of the same memory after `torch.reshape(x, new)`; None if memory must be rearranged first.

    >>> reshape((1, 8, 4, 4), (1, 8, 16), NHWC)  # flatten(2) of a feature map in NHWC
    (0, 2, 1)

    >>> reshape((1, 8, 4, 4), (1, 128), NHWC) is None
    True
    """
    pairs = groups(old, new)
    if pairs is None:
        return row_major(len(new)) if same_memory(old, order, row_major(len(old))) else None
    memory = [d for d in order if not is_one(old[d])]
    leads = {a[0]: (a, b) for a, b in pairs}
    dims: list[int] = []
    position = 0
    while position < len(memory):
        pair = leads.get(memory[position])
        if pair is None or memory[position : position + len(pair[0])] != pair[0]:
            return None
        dims += pair[1]
        position += len(pair[0])
    return _place_ones(dims, new)


def _place_ones(dims: Sequence[int], new: Sequence[Size]) -> Order:
    """Put leading dimensions of size 1 first, the others right before the logical dimension that follows them."""
    first = next((d for d, s in enumerate(new) if not is_one(s)), len(new))
    placed = list(range(first))
    for d in dims:
        before = d
        while before > first and is_one(new[before - 1]):
            before -= 1
        placed += range(before, d + 1)
    return (*placed, *(d for d in range(len(new)) if d not in placed))
