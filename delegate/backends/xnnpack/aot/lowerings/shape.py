"""Lowerings of operators that return the same elements in another shape: views, permutes, aliases, expand, repeat.

Permutes and aliases cost nothing: they only rename dimensions. A reshape keeps the order in memory if possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch.fx import Node

from delegate.backend.aot import RegionRefused
from delegate.backend.inexact import returns_to_half
from delegate.backend.lowering import every
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import Order, Size
from delegate.backends.xnnpack.aot.lowerings.table import MAX_RANK, TABLE, floats
from delegate.backends.xnnpack.aot.operand import Operand, shape_of
from delegate.edge.node import arguments, op_name
from delegate.verdict import YES, Reason, Verdict, no

SQUEEZES = ("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.unsqueeze.default")
RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
ALIASES = (
    "aten.clone.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
)
# Binary operators that broadcast: their arguments need not be expanded.
_BROADCASTING = frozenset(
    {
        "aten.add.Tensor",
        "aten.sub.Tensor",
        "aten.mul.Tensor",
        "aten.div.Tensor",
        "aten.maximum.default",
        "aten.minimum.default",
    }
)


def dynamic_sizes(shape: Sequence[Size]) -> int:
    """Return the number of sizes that are not known ahead of time."""
    return sum(type(s) is not int for s in shape)


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Return true if two shapes are equal, symbol by symbol, without adding guards."""
    return len(a) == len(b) and all(str(x) == str(y) for x, y in zip(a, b, strict=True))


def difference(a: Size, b: Size) -> int | None:
    """Return a - b if this is a plain number for all values of the symbols, else None."""
    result = a - b
    if type(result) is int:
        return result
    expression = result.node.expr
    return int(expression) if expression.is_Integer else None


def source(node: Node) -> Node:
    """Return the source of a shape operator: its first argument."""
    return cast(Node, node.args[0])


def infers_one(node: Node) -> Verdict:
    """One size at most is not known now: a RESHAPE infers it."""
    shape = shape_of(node)
    if dynamic_sizes(shape) <= 1 or same_shape(shape, shape_of(source(node))):
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"a reshape to {[str(s) for s in shape]} has more than one size to infer")


def one_unknown(node: Node) -> Verdict:
    """One size at most is not known now."""
    shape = shape_of(node)
    if dynamic_sizes(shape) > 1:
        return no(Reason.DYNAMIC_SHAPE, f"more than one dynamic size: {[str(s) for s in shape]}")
    return YES


def reshape(builder: RegionBuilder, node: Node) -> None:
    """Lower to a RESHAPE. A transpose precedes it only if the memory order does not allow the new shape."""
    builder.set(node, builder.reshape(builder.operand(source(node)), shape_of(node)))


@TABLE.lowers(*SQUEEZES, check=floats)
def lower_squeeze(builder: RegionBuilder, node: Node) -> None:
    """Lower to a RESHAPE, or with several dynamic sizes to a product with ones or a sum over sizes of 1."""
    shape, source_shape = shape_of(node), shape_of(source(node))
    if not infers_one(node) and len(shape) > len(source_shape):
        dim = cast(int, node.args[1]) % len(shape)
        builder.set(node, unsqueeze_by_product(builder, builder.operand(source(node)), shape, dim))
    elif not infers_one(node):
        builder.set(node, squeeze_by_sum(builder, builder.operand(source(node)), shape, _squeeze(node)))
    else:
        reshape(builder, node)


def unsqueeze_by_product(builder: RegionBuilder, x: Operand, shape: tuple[Size, ...], dim: int) -> Operand:
    """Add a dimension of size 1, which comes first in memory."""
    order = (dim, *(d + (d >= dim) for d in x.order))
    return builder.emit(
        "MUL", [x, builder.constant(np.ones((1,) * len(shape), np.float32))], shape, order, "MulOptions"
    )


def _squeeze(node: Node) -> list[int]:
    rank = len(shape_of(source(node)))
    dims = node.args[1] if len(node.args) > 1 else range(rank)
    requested = [d % rank for d in ([dims] if isinstance(dims, int) else cast(Sequence[int], dims))]
    return [d for d in requested if layout.is_one(shape_of(source(node))[d])]


def squeeze_by_sum(builder: RegionBuilder, x: Operand, shape: tuple[Size, ...], dims: list[int]) -> Operand:
    """Remove dimensions of size 1."""
    axes = builder.numbers(sorted(x.axis(d) for d in dims))
    return builder.emit("SUM", [x, axes], shape, without(x.order, dims), "ReducerOptions", keepDims=False)


def without(order: Order, dims: Sequence[int]) -> Order:
    """Return an order without some of its dimensions.

    >>> without((0, 2, 3, 1), [1])
    (0, 1, 2)
    """
    remaining = sorted(d for d in order if d not in dims)
    return tuple(remaining.index(d) for d in order if d not in dims)


@TABLE.lowers("aten.permute.default", check=floats)
def lower_permute(builder: RegionBuilder, node: Node) -> None:
    """Rename the dimensions; no operator is emitted."""
    x = builder.operand(source(node))
    builder.set(node, relabel(x, [d % x.rank for d in arguments(node)["dims"]]))


def relabel(x: Operand, dims: Sequence[int]) -> Operand:
    """Permute as `torch.permute` does: the same memory with renamed dimensions."""
    return replace(x, shape=tuple(x.shape[d] for d in dims), order=layout.permute(x.order, dims))


@TABLE.lowers("aten._to_copy.default", check=every(floats, returns_to_half))
@TABLE.lowers(*ALIASES, check=floats)
def lower_alias(builder: RegionBuilder, node: Node) -> None:
    """Pass on the operand; no operator is emitted."""
    builder.set(node, builder.operand(source(node)))


# -- expand ------------------------------------------------------------------------------------------------------------


def _expanding_dims(node: Node) -> list[int]:
    """Return the result dimensions of an expand along which elements are repeated, with new leading dimensions."""
    shape, source_shape = shape_of(node), shape_of(source(node))
    missing = len(shape) - len(source_shape)
    sizes = (1,) * missing + source_shape
    return [d for d, s in enumerate(shape) if layout.is_one(sizes[d]) and not layout.is_one(s)]


def is_expand(node: Any) -> bool:
    """Return true if a node is an expand, whose value may be unexpanded in the model."""
    return isinstance(node, Node) and op_name(node) == "aten.expand.default"


def _absorbs(user: Node, node: Node) -> bool:
    """Return true if an operator broadcasts the dimensions that the expand `node` repeats."""
    name, dims = op_name(user), _expanding_dims(node)
    if name in _BROADCASTING:
        x, y = user.args[:2]
        other = y if x is node else x
        if not isinstance(other, Node) or is_expand(other) or not isinstance(other.meta.get("val"), torch.Tensor):
            return False
        shape, expanded_shape = shape_of(other), shape_of(node)
        return len(shape) == len(expanded_shape) and all(str(shape[d]) == str(expanded_shape[d]) for d in dims)
    if name == "aten.cat.default" and dynamic_sizes([shape_of(node)[d] for d in dims]):
        parts = cast(Sequence[Node], user.args[0])
        dim = cast(int, user.args[1] if len(user.args) > 1 else 0) % len(shape_of(user))
        static = all(type(shape_of(part)[dim]) is int for part in parts)
        return dim not in dims and static and not all(map(is_expand, parts))
    return False


def _expandable(node: Node) -> Verdict:
    """The numbers of repetitions are known now, or all users broadcast."""
    shape = shape_of(node)
    unknown = [d for d in _expanding_dims(node) if type(shape[d]) is not int]
    if unknown and not all(_absorbs(user, node) for user in node.users):
        message = f"dimension {unknown[0]} is repeated {shape[unknown[0]]} times, a number known only at run time"
        return no(Reason.DYNAMIC_SHAPE, message, "use broadcasting in the operators that read it")
    return YES


@TABLE.lowers("aten.expand.default", check=every(floats, _expandable))
def lower_expand(builder: RegionBuilder, node: Node) -> None:
    """Emit nothing if all users broadcast; else a product with ones, which repeats elements exactly."""
    shape, dims = shape_of(node), _expanding_dims(node)
    x = builder.operand(source(node))
    if not dims and len(shape) == x.rank:
        builder.set(node, x)
    elif all(_absorbs(user, node) for user in node.users):
        builder.set(node, builder.reshape(x, (1,) * (len(shape) - x.rank) + x.shape))
    elif dynamic_sizes([shape[d] for d in dims]):
        raise RegionRefused(
            {node.name: "its number of repetitions is known only at run time, and not all users broadcast"}
        )
    else:
        builder.set(node, repeat_ones(builder, x, {d: cast(int, shape[d]) for d in dims}, len(shape)))


def repeat_ones(builder: RegionBuilder, x: Operand, times: Mapping[int, int], rank: int) -> Operand:
    """Repeat dimensions of size 1 to `rank` dimensions, of which new ones come first."""
    missing = rank - x.rank
    order = (*range(missing), *(d + missing for d in x.order))
    shape = [*(1,) * missing, *x.shape]
    ones = [1] * rank
    for d, count in times.items():
        shape[d] = ones[d] = count
    return builder.emit("MUL", [x, builder.constant(np.ones(ones, np.float32), order)], shape, order, "MulOptions")


def repeat_each(builder: RegionBuilder, x: Operand, times: Mapping[int, int], inner: bool) -> Operand:
    """Repeat dimensions: element by element if `inner` (a a b b), else as a whole (a b a b).

    The sum of the rank and the number of dimensions in `times` is at most 6.
    """
    repeats = {d: n for d, n in times.items() if n != 1}
    single = {d: n for d, n in repeats.items() if layout.is_one(x.shape[d])}
    if single:
        x = repeat_ones(builder, x, single, x.rank)
    split = sorted(repeats.keys() - single.keys())
    if not split:
        return x
    # Each dimension d to repeat becomes two adjacent ones in memory: the elements, and a 1 that is then repeated.
    start = {d: d + sum(s < d for s in split) for d in range(x.rank)}
    order: list[int] = []
    sizes: list[Size] = []
    for d in range(x.rank):
        sizes += [x.shape[d]] if d not in split else ([x.shape[d], 1] if inner else [1, x.shape[d]])
    for d in x.order:
        order += [start[d], start[d] + 1] if d in split else [start[d]]
    spread = builder.view(x, tuple(sizes), tuple(order))
    repeated = repeat_ones(builder, spread, {start[d] + inner: repeats[d] for d in split}, len(sizes))
    repeated_shape = [s * repeats[d] if d in split else s for d, s in enumerate(x.shape)]
    return builder.view(repeated, tuple(repeated_shape), x.order)


def _repeatable(node: Node) -> Verdict:
    """Repetitions are known now, and of few dimensions."""
    repeats = arguments(node)["repeats"]
    if any(type(n) is not int for n in repeats):
        return no(Reason.DYNAMIC_SHAPE, "the number of repetitions is known only at run time")
    source_shape = shape_of(source(node))
    missing = len(repeats) - len(source_shape)
    split = sum(n != 1 and not layout.is_one(s) for n, s in zip(repeats[missing:], source_shape, strict=True))
    if len(repeats) + split > MAX_RANK:
        return no(Reason.RANK, f"repeating {split} of {len(repeats)} dimensions needs more than {MAX_RANK} dimensions")
    if split or missing:
        return infers_one(node)
    return YES


@TABLE.lowers("aten.repeat.default", check=every(floats, _repeatable))
def lower_repeat(builder: RegionBuilder, node: Node) -> None:
    """Lower to a product with ones, between two reshapes if whole dimensions are repeated."""
    repeats = arguments(node)["repeats"]
    x = builder.operand(source(node))
    x = builder.reshape(x, (1,) * (len(repeats) - x.rank) + x.shape)
    repeated = repeat_each(builder, x, dict(enumerate(repeats)), inner=False)
    builder.set(node, replace(repeated, shape=shape_of(node)))
