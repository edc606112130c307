"""Matrix products: linear, mm, bmm, addmm and similar operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import cast
from delegate.kernels.table import BOOL, COMPLEX, FLOAT, INT, TABLE
from delegate.program.dtypes import DType

_DTYPES = (FLOAT | INT | COMPLEX) - {DType.float16}
_EXACT = (1 << 24) // (255 * 128)  # number of uint8 and int8 products that float32 sums exactly
Number = int | float | complex


@TABLE.kernel("aten.linear.default", dtypes=_DTYPES, whole=True)
def linear(x: Array, weight: Array, bias: Array | None, *, out: Array) -> None:
    """Multiply x (..., K) by weight (O, K) or (K) and add bias (O); all leading axes of x are rows of one matrix."""
    rows, columns = math.prod(x.shape[:-1]), 1 if weight.ndim == 1 else weight.shape[0]
    flat = out.reshape(rows, columns, copy=False)
    np.matmul(x.reshape(rows, x.shape[-1]), weight.reshape(columns, weight.shape[-1]).T, out=flat)
    if bias is not None:
        np.add(flat, bias, out=flat)


@TABLE.kernel("aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default", dtypes=_DTYPES)
def product(left: Array, right: Array, *, out: Array) -> None:
    np.matmul(left, right, out=out)


@TABLE.kernel("aten._int_mm.default", dtypes={DType.int8, DType.uint8, DType.int32})
def int8_product(left: Array, right: Array, *, out: Array) -> None:
    """Multiply int8 or uint8 (M, K) by int8 (K, N) -> int32 in float32, which sums these products exactly."""
    wide = left.astype(np.float32)
    out.fill(0)
    for start in range(0, left.shape[1], _EXACT):
        part = slice(start, start + _EXACT)
        np.add(out, wide[:, part] @ right[part].astype(np.float32), out=out, casting="unsafe")


@TABLE.kernel("aten.matmul.default", dtypes=_DTYPES, whole=True)
def matmul(left: Array, right: Array, *, out: Array) -> None:
    """Multiply matrices of any ranks; if only the left side has batches, they are rows of one product."""
    if right.ndim == 2 and left.ndim > 2:
        rows = math.prod(left.shape[:-1])
        np.matmul(left.reshape(rows, left.shape[-1]), right, out=out.reshape(rows, right.shape[1], copy=False))
    else:
        np.matmul(left, right, out=out)


@TABLE.kernel("aten.vdot.default", dtypes=_DTYPES)
def vdot(left: Array, right: Array, *, out: Array) -> None:
    np.matmul(left.conj(), right, out=out)


@TABLE.kernel("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default", dtypes=_DTYPES, whole=True)
def add_product(bias: Array, left: Array, right: Array, beta: Number, alpha: Number, *, out: Array) -> None:
    """Compute beta * bias + alpha * (left @ right)."""
    np.matmul(left, right, out=out)
    _add_scaled(bias, beta, alpha, out)


@TABLE.kernel("aten.addbmm.default", dtypes=_DTYPES)
def addbmm(bias: Array, left: Array, right: Array, beta: Number, alpha: Number, *, out: Array) -> None:
    """Compute beta * bias + alpha * sum over the batch of (left @ right)."""
    np.sum(np.matmul(left, right), axis=0, dtype=out.dtype, out=out)
    _add_scaled(bias, beta, alpha, out)


@TABLE.kernel("aten.outer.default", "aten.ger.default", dtypes=_DTYPES | BOOL)
def outer(left: Array, right: Array, *, out: Array) -> None:
    np.multiply(left[:, None], right, out=out)


@TABLE.kernel("aten.addr.default", dtypes=_DTYPES | BOOL)
def addr(bias: Array, left: Array, right: Array, beta: Number, alpha: Number, *, out: Array) -> None:
    """Compute beta * bias + alpha * outer(left, right)."""
    np.multiply(left[:, None], right, out=out)
    _add_scaled(bias, beta, alpha, out)


@TABLE.kernel("aten._trilinear.default", dtypes=_DTYPES)
def trilinear(
    first: Array,
    second: Array,
    third: Array,
    new_first: Sequence[int],
    new_second: Sequence[int],
    new_third: Sequence[int],
    summed: Sequence[int],
    _unrolled: int,
    *,
    out: Array,
) -> None:
    """Multiply three tensors, each with new dimensions of size 1, and sum over some dimensions."""
    rank = first.ndim + len(new_first)
    operands: list[Any] = []
    for x, new in ((first, new_first), (second, new_second), (third, new_third)):
        operands += [x, [d for d in range(rank) if d not in new]]
    out[...] = np.einsum(*operands, [d for d in range(rank) if d not in summed], optimize=True).reshape(out.shape)


def _add_scaled(bias: Array, beta: Any, alpha: Any, out: Array) -> None:
    """Compute out = beta * bias + alpha * out. A zero beta ignores the bias, even NaN. Integer factors truncate."""
    if out.dtype.kind in "iu":
        alpha, beta = cast(alpha, out.dtype), cast(beta, out.dtype)
    if alpha != 1:
        np.multiply(out, alpha, out=out, casting="unsafe")
    if beta == 1:
        np.add(out, bias, out=out)
    elif beta != 0:
        np.add(out, np.multiply(bias, beta), out=out, casting="unsafe")
