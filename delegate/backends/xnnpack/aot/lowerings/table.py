"""The table of XNNPACK lowerings, the checks that its rows share, and the propagation of NaN.

A check returns a verdict about one node of an edge graph. It must be exact, and cheap: a graph may have 100,000 nodes.

XNNPACK's maxima, minima, pools, exp and log return numbers for NaN. With option `nan: exact`, their result is added to
a term that is 0 for numbers and infinities, and NaN for NaN. The term is a clamp to -1 and 1, which propagates NaN,
times 0. With `nan: fast`, nothing is added. Sine and cosine of numbers that are too large for XNNPACK are NaN as well,
instead of a wrong number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from delegate.backend.lowering import LoweringTable
from delegate.backend.qdq import is_known
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.operand import Operand
from delegate.edge.node import op_name
from delegate.verdict import YES, Reason, Verdict, no

Lower = Callable[[RegionBuilder, Node], None]

TABLE: LoweringTable[Lower] = LoweringTable()

MAX_RANK = 6  # XNN_MAX_TENSOR_DIMS
HALVES = frozenset({torch.float16, torch.bfloat16})  # computed in float32 within a partition, rounded at its border
FLOATS = frozenset({torch.float32, *HALVES})

Check = Callable[[Node], Verdict]


def floats(node: Node) -> Verdict:
    """All operands and results are float32, float16 or bfloat16, of rank 6 at most, and none is empty.

    Of a node with several results, only the first counts.
    """
    for other in (node, *node.all_input_nodes):
        verdict = float_tensor(other.meta.get("val"), node, other)
        if verdict.reason is not None:
            return verdict
    return YES


def floats_beside(*others: torch.dtype) -> Check:
    """Return a check like `floats`, for an operator that may also have operands of other dtypes."""

    def check(node: Node) -> Verdict:
        for other in (node, *node.all_input_nodes):
            value = other.meta.get("val")
            if other is node or getattr(value, "dtype", None) not in others:
                verdict = float_tensor(value, node, other)
                if verdict.reason is not None:
                    return verdict
        return YES

    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in others)
    check.__doc__ = (
        "All operands and results are float32, float16 or bfloat16, of rank 6 at most, and none is empty.\n"
        f"Operands may also be {names}."
    )
    return check


def float_tensor(value: Any, node: Node, other: Node) -> Verdict:
    """Check the value of a node, or of one of its arguments: dtype, rank and elements."""
    if type(value) in (tuple, list):
        value = value[0]
    try:
        dtype, shape = value.dtype, value.shape
    except AttributeError:
        return YES  # a symbolic number
    if dtype not in FLOATS:
        name = str(dtype).removeprefix("torch.")
        return no(Reason.DTYPE, f"{_role(node, other)} is {name}, but XNNPACK computes in float32")
    if len(shape) > MAX_RANK:
        return no(
            Reason.RANK, f"{_role(node, other)} has {len(shape)} dimensions, but XNNPACK supports {MAX_RANK} at most"
        )
    for size in shape:
        if type(size) is int and size == 0:
            return no(Reason.ATTRIBUTE, f"{_role(node, other)} has no elements: its shape is {list(shape)}")
    return YES


def _role(node: Node, other: Node) -> str:
    return "the result" if other is node else f"argument {other.name}"


def whole_precision(node: Node) -> Verdict:
    """No tensor is float16 or bfloat16."""
    for other in (node, *node.all_input_nodes):
        dtype = getattr(other.meta.get("val"), "dtype", None)
        if dtype in HALVES:
            name = str(dtype).removeprefix("torch.")
            what = f"{_role(node, other)} is {name}: its steps would move, because inputs are not rounded first"
            return no(Reason.INACCURATE, what)
    return YES


def ranks(*allowed: int) -> Check:
    """Return a check that the node's result has one of these numbers of dimensions."""

    def check(node: Node) -> Verdict:
        value = node.meta["val"]
        rank = (value[0] if isinstance(value, tuple | list) else value).dim()
        if rank in allowed:
            return YES
        return no(
            Reason.RANK, f"the result has {rank} dimensions; {op_name(node)} is supported with {_either(allowed)}"
        )

    check.__doc__ = f"The result has {_either(allowed)} dimensions."
    return check


def channels_known(node: Node) -> Verdict:
    """The number of channels is known now."""
    count = node.all_input_nodes[0].meta["val"].shape[1]
    return YES if type(count) is int else no(Reason.DYNAMIC_SHAPE, f"{count} channels")


def _either(numbers: tuple[int, ...]) -> str:
    return " or ".join(str(n) for n in numbers)


def constant(*names: tuple[int, str]) -> Check:
    """Return a check that these arguments, each (position, name), are constant or omitted."""

    def check(node: Node) -> Verdict:
        for position, name in names:
            argument = arg(node, position)
            if argument is not None and not (isinstance(argument, Node) and is_known(argument)):
                return no(Reason.NON_CONSTANT, f"{name} is computed at run time, but XNNPACK packs it ahead of time")
        return YES

    return check


def arg(node: Node, position: int, default: Any = None) -> Any:
    """Return a positional argument, or `default` if the call omits it."""
    return node.args[position] if position < len(node.args) else default


def propagate_nan(builder: RegionBuilder, y: Operand, x: Operand) -> Operand:
    """Return y, to which x broadcasts, with NaN where x has NaN.

    On x86, XNNPACK's maximum and minimum propagate NaN of one operand only.
    """
    if not builder.keeps_nan():
        return y
    return add_nan(builder, y, clamp_to_one(builder, x))


def propagate_nan_of_log(builder: RegionBuilder, y: Operand, x: Operand) -> Operand:
    """Return y, the logarithm of x, with infinity and NaN from x, as XNNPACK's result is about 88 without AVX-512."""
    if not builder.keeps_nan():
        return y
    small = builder.emit("MUL", [x, builder.scalar(1.2e-38)], x.shape, x.order, "MulOptions")  # at most 4.1
    below = builder.emit("SUB", [small, builder.scalar(5.0)], x.shape, x.order, "SubOptions")
    builder.nan_guards += 1
    return _add(builder, y, builder.emit("RELU", [below], x.shape, x.order))


def without_large_angles(builder: RegionBuilder, x: Operand) -> Operand:
    """Return x with infinity instead of 2^27 and more.

    XNNPACK's sine and cosine of infinity are NaN; those of large numbers are numbers in the hundreds.
    """
    if not builder.keeps_nan():
        return x
    builder.nan_guards += 1
    large = builder.emit("MUL", [x, builder.scalar(2.0**101)], x.shape, x.order, "MulOptions")
    return builder.emit("MUL", [large, builder.scalar(2.0**-101)], x.shape, x.order, "MulOptions")


def propagate_nan_along(builder: RegionBuilder, y: Operand, x: Operand, dims: Sequence[int], keepdim: bool) -> Operand:
    """Return y, a reduction of x along dimensions, with NaN where x has NaN along them."""
    if not dims or not builder.keeps_nan():
        return y
    axes = builder.numbers(sorted(x.axis(d) for d in dims))
    clamped = clamp_to_one(builder, x)
    total = builder.emit("SUM", [clamped, axes], y.shape, y.order, "ReducerOptions", keepDims=keepdim)
    return add_nan(builder, y, total)


def clamp_to_one(builder: RegionBuilder, x: Operand) -> Operand:
    """Return x clamped to -1 and 1: its sums are finite, or NaN if x has NaN."""
    return builder.emit("RELU_N1_TO_1", [x], x.shape, x.order)


def add_nan(builder: RegionBuilder, y: Operand, x: Operand) -> Operand:
    """Return y with NaN where x, which is finite otherwise, has NaN."""
    builder.nan_guards += 1
    return _add(builder, y, builder.emit("MUL", [x, builder.scalar(0.0)], x.shape, x.order, "MulOptions"))


def _add(builder: RegionBuilder, y: Operand, zeros: Operand) -> Operand:
    return builder.emit("ADD", [y, zeros], y.shape, y.order, "AddOptions")
