"""Lowering of views. A RESHAPE infers one size. With several dynamic sizes, static dimensions are split and joined.

(batch, length, heads * channels) over dynamic batch and length becomes (batch, length, heads, channels) by a slice per
head and a concatenation, and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.fx import Node

from delegate.backend.lowering import every
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import Size
from delegate.backends.xnnpack.aot.lowerings.gather_scatter import MAX_PIECES
from delegate.backends.xnnpack.aot.lowerings.indexing import concatenate, take
from delegate.backends.xnnpack.aot.lowerings.shape import (
    RESHAPES,
    dynamic_sizes,
    infers_one,
    reshape,
    source,
    squeeze_by_sum,
    unsqueeze_by_product,
)
from delegate.backends.xnnpack.aot.lowerings.table import MAX_RANK, TABLE, floats
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.verdict import YES, Reason, Verdict, no


def _pair_dimensions(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Pair old with new dimensions, leaving out size 1.

    Returns None if a dynamic dimension is joined or split, or if the parts are too many.
    """
    pairs = layout.groups(old, new)
    for a, b in pairs or ():
        if len(a) == len(b) == 1:
            continue
        sizes = [*(old[d] for d in a), *(new[d] for d in b)]
        if dynamic_sizes(sizes) or math.prod([old[d] for d in a[:-1]] + [new[d] for d in b[:-1]]) > MAX_PIECES:
            return None
    return pairs


def _viewable(node: Node) -> Verdict:
    """One size at most is not known now; or dynamic sizes stay as they are, and few static ones are split or joined."""
    verdict = infers_one(node)
    if verdict:
        return verdict
    old, new = shape_of(source(node)), shape_of(node)
    if max(len(old), len(new)) < MAX_RANK and _pair_dimensions(old, new) is not None:
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"a view of {_format(old)} as {_format(new)} has more than one size to infer")


def _format(shape: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, shape))}]"


@TABLE.lowers(*RESHAPES, check=every(floats, _viewable))
def lower_view(builder: RegionBuilder, node: Node) -> None:
    """Lower to a RESHAPE, or to splits and joins of dimensions.

    A transpose precedes the RESHAPE only if the memory order does not allow the new shape.
    """
    if infers_one(node):
        reshape(builder, node)
        return
    x, new = builder.operand(source(node)), shape_of(node)
    pairs = _pair_dimensions(x.shape, new)
    assert pairs is not None
    ones = [d for d, size in enumerate(x.shape) if layout.is_one(size)]
    if ones:
        x = squeeze_by_sum(builder, x, tuple(s for s in x.shape if not layout.is_one(s)), ones)
    at = 0
    for old, new_dims in pairs:  # dimensions before `at` are final
        for _ in old[1:]:
            x = _join(builder, x, at)
        for d in new_dims[:-1]:
            x = _split(builder, x, at, new[d])
            at += 1
        at += 1
    for d, size in enumerate(new):
        if layout.is_one(size):
            x = unsqueeze_by_product(builder, x, (*x.shape[:d], 1, *x.shape[d:]), d)
    builder.set(node, x)


def _split(builder: RegionBuilder, x: Operand, dim: int, count: Size) -> Operand:
    """Split a dimension into (count, rest), where `count` is second in memory, as attention requires."""
    rest, shape = x.shape[dim] // count, x.shape
    unsqueezed = unsqueeze_by_product(builder, x, (*shape[:dim], 1, *shape[dim:]), dim)
    parts = [take(builder, unsqueezed, dim + 1, (i * rest, (i + 1) * rest), rest) for i in range(count)]
    return concatenate(builder, parts, dim)


def _join(builder: RegionBuilder, x: Operand, dim: int) -> Operand:
    """Join a dimension and the next one."""
    count, rest = x.shape[dim], x.shape[dim + 1]
    joined = concatenate(builder, [take(builder, x, dim, (i, i + 1), 1) for i in range(count)], dim + 1)
    shape = (*x.shape[:dim], count * rest, *x.shape[dim + 2 :])
    return squeeze_by_sum(builder, joined, shape, [dim])
