"""Matrix products: FULLY_CONNECTED if the right side is constant, else BATCH_MATMUL."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
from torch.fx import Node

from delegate.backend.lowering import every, of_matrices
from delegate.backend.qdq import Coded
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.layout import Order, Size
from delegate.backends.xnnpack.aot.lowerings.elementwise import binary, broadcasting
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, floats
from delegate.backends.xnnpack.aot.operand import Operand, example, shape_of
from delegate.backends.xnnpack.aot.tflite import Array
from delegate.edge.node import tensor
from delegate.verdict import YES, Reason, Verdict, no


def fully_connected(
    builder: RegionBuilder, x: Operand, weight: Array | Coded, bias: Array | None, shape: tuple[Size, ...]
) -> Operand:
    """Emit x @ weight.T + bias; weight is [O, I], where leading dimensions of x keep their order."""
    last = x.rank - 1
    x = builder.reorder(x, (*(d for d in x.order if d != last), last))
    row = x if x.rank > 1 else builder.reshape(x, (1, *x.shape))
    inputs: list[Operand | int] = [row, builder.constant(weight), -1 if bias is None else builder.bias(bias, x, weight)]
    out_shape = shape if x.rank > 1 else (1, *shape)
    order = x.order if x.rank > 1 else (0, 1)
    options = {"keepNumDims": True}
    if builder.quantizes_at_run_time(x, weight):
        options["asymmetricQuantizeInputs"] = True
    y = builder.emit("FULLY_CONNECTED", inputs, out_shape, order, "FullyConnectedOptions", **options)
    return y if x.rank > 1 else builder.reshape(y, shape)


def matrix_product(builder: RegionBuilder, a: Node, b: Node, shape: tuple[Size, ...]) -> Operand:
    """Emit a @ b, of at least two dimensions each; batch dimensions broadcast."""
    if builder.is_constant(b) and builder.array(b).ndim == 2:
        return fully_connected(builder, builder.operand(a), builder.weights(b).T, None, shape)
    return batch_matmul(builder, builder.operand(a), builder.operand(b), shape)


def batch_matmul(builder: RegionBuilder, a: Operand, b: Operand, shape: tuple[Size, ...]) -> Operand:
    """Emit a @ b, without a transpose if BATCH_MATMUL supports the order of the factors.

    (a @ b) is also (b.T @ a.T).T, so if both are stored transposed, the factors are swapped and the result is
    transposed.
    """
    rank = len(shape)
    batch = _batch_order(a, b, rank)
    a, b = _lead(builder, a, batch, rank), _lead(builder, b, batch, rank)
    a_transposed, b_transposed = _is_transposed(a), _is_transposed(b)
    if a_transposed and b_transposed:
        order = (*batch, rank - 1, rank - 2)
        return builder.emit("BATCH_MATMUL", [b, a], shape, order, "BatchMatMulOptions", adjX=False, adjY=False)
    a = builder.reorder(a, _order(batch, a.rank, rank, transposed=False))
    order = (*batch, rank - 2, rank - 1)
    return builder.emit("BATCH_MATMUL", [a, b], shape, order, "BatchMatMulOptions", adjX=False, adjY=b_transposed)


def _batch_order(a: Operand, b: Operand, rank: int) -> Order:
    """Return the order of batch dimensions in the larger factor of full rank."""
    full = [x for x in (a, b) if x.rank == rank]
    largest = max(full, key=lambda x: math.prod(example(s) for s in x.shape))
    return tuple(d for d in largest.order if d < rank - 2)


def _is_transposed(x: Operand) -> bool:
    return x.axis(-1) < x.axis(-2)


def _order(batch: Order, own: int, rank: int, transposed: bool) -> Order:
    """Return the order for a factor of rank `own`: batch dimensions as in `batch`, then its matrix."""
    leading = tuple(d - (rank - own) for d in batch if d >= rank - own)
    return (*leading, own - 1, own - 2) if transposed else (*leading, own - 2, own - 1)


def _lead(builder: RegionBuilder, x: Operand, batch: Order, rank: int) -> Operand:
    """Reorder a factor to have its batch dimensions first, and expand it to `rank`; its matrix keeps its order."""
    x = builder.reorder(x, _order(batch, x.rank, rank, _is_transposed(x)))
    if x.rank < rank and x.rank > 2:
        x = builder.expand_rank(x, rank, (*batch, *(d + rank - x.rank for d in x.order[-2:])))
    return x


def _linear(node: Node) -> Verdict:
    """The weight has two dimensions."""
    rank = tensor(cast(Node, node.args[1])).dim()
    return YES if rank == 2 else no(Reason.RANK, f"the weight has {rank} dimensions, not 2")


@TABLE.lowers("aten.linear.default", check=every(floats, _linear), keep=True)
def linear(builder: RegionBuilder, node: Node) -> None:
    """Lower to x @ weight.T + bias."""
    x, weight, bias = cast(Any, (*node.args, None))[:3]
    shape = shape_of(node)
    if builder.is_constant(weight) and (bias is None or builder.is_constant(bias)):
        numbers = None if bias is None else builder.array(bias)
        builder.set(node, fully_connected(builder, builder.operand(x), builder.weights(weight), numbers, shape))
        return
    left, right = builder.operand(x), builder.operand(weight)
    transposed = replace(right, shape=right.shape[::-1], order=tuple(1 - d for d in right.order))
    flat = left if left.rank > 1 else builder.reshape(left, (1, *left.shape))
    y = batch_matmul(builder, flat, transposed, (*flat.shape[:-1], shape[-1]))
    y = y if left.rank > 1 else builder.reshape(y, shape)
    builder.set(node, y if bias is None else broadcasting(builder, node, "ADD", (y, bias)))


@TABLE.lowers("aten.mm.default", "aten.bmm.default", check=floats)
@TABLE.lowers("aten.matmul.default", check=every(floats, of_matrices), keep=True)
def matmul(builder: RegionBuilder, node: Node) -> None:
    """Lower to a product of matrices."""
    a, b = cast("tuple[Node, Node]", node.args[:2])
    builder.set(node, matrix_product(builder, a, b, shape_of(node)))


@TABLE.lowers("aten.addmm.default", check=floats)
def addmm(builder: RegionBuilder, node: Node) -> None:
    """Lower to beta * c + alpha * (a @ b)."""
    c, a, b = cast("tuple[Node, Node, Node]", node.args[:3])
    beta, alpha = (float(cast(Any, node.kwargs.get(name, 1))) for name in ("beta", "alpha"))
    shape = shape_of(node)
    if builder.is_constant(b) and builder.is_constant(c):
        bias = np.asarray(builder.array(c) * np.float32(beta))
        if bias.ndim < 2 or bias.shape[0] == 1:
            weight = builder.array(b).T * np.float32(alpha)
            row = np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (weight.shape[0],)))
            builder.set(node, fully_connected(builder, builder.operand(a), weight, row, shape))
            return
    y = matrix_product(builder, a, b, shape)
    y = y if alpha == 1 else binary(builder, "MUL", y, alpha)
    if beta == 0:
        builder.set(node, y)
        return
    term: Any = c if beta == 1 else _scale(builder, c, beta)
    builder.set(node, broadcasting(builder, node, "ADD", (y, term)))


def _scale(builder: RegionBuilder, c: Node, beta: float) -> Operand:
    if builder.is_constant(c):
        return builder.constant(builder.array(c) * np.float32(beta))
    return binary(builder, "MUL", builder.operand(c), beta)
