"""Distances between the rows of matrices."""

from __future__ import annotations

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.operands import row_blocks
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import FLOAT
from delegate.program.dtypes import DType

_FLOAT = FLOAT - {DType.float16}
_MANY = 25  # rows, beyond which torch multiplies matrices
_NEVER = 2
_SMALL = 1 << 16  # elements of all differences, up to which they are taken at once


@TABLE.kernel("aten._cdist_forward.default", "aten.cdist.default", dtypes=_FLOAT)
def cdist(left: Array, right: Array, p: float, compute_mode: int | None, *, out: Array) -> None:
    """left (..., P, M), right (..., R, M) -> (..., P, R), the p-norm of every difference; one feature at a time.

    Euclidean ones of many rows are made of products, as torch makes them (compute_mode 1 always, 2 never).
    """
    by_products = compute_mode == 1 or (compute_mode != _NEVER and max(out.shape[-2:]) > _MANY)
    if p == 2 and by_products and out.dtype == np.float32:
        _euclidean(left, right, out)
        return
    if p == 2 and out.size * left.shape[-1] <= _SMALL:
        difference = left[..., :, None, :] - right[..., None, :, :]
        np.sqrt(np.einsum("...m,...m->...", difference, difference, out=out), out=out)
        return
    out.fill(0)
    part = np.empty_like(out)
    for feature in range(left.shape[-1]):
        np.subtract(left[..., :, feature, None], right[..., None, :, feature], out=part)
        _accumulate(part, p, out)
    _root(p, out)


def _euclidean(left: Array, right: Array, out: Array) -> None:
    """|x - y| as the root of |x|^2 + |y|^2 - 2 xy: one product, in float64, which loses little where both are close."""
    wide, turned = _with_squares(left, -2, last=False), _with_squares(right, 1, last=True).swapaxes(-1, -2)
    for rows in row_blocks(out.shape[-2], out.size // max(out.shape[-2], 1)):
        total = np.matmul(wide[..., rows, :], turned)
        np.sqrt(np.maximum(total, 0, out=total), out=out[..., rows, :], casting="same_kind")


def _with_squares(x: Array, factor: int, *, last: bool) -> Array:
    """x (..., N, M) times a factor in float64 -> (..., N, M + 2), behind it |x|^2 and 1, or 1 and |x|^2 as the last."""
    made = np.ones((*x.shape[:-1], x.shape[-1] + 2))
    np.multiply(x, factor, out=made[..., :-2], dtype=np.float64)
    np.einsum("...m,...m->...", x, x, out=made[..., -1 if last else -2], dtype=np.float64)
    return made


@TABLE.kernel("aten._pdist_forward.default", "aten.pdist.default", dtypes=_FLOAT)
def pdist(x: Array, p: float, *, out: Array) -> None:
    """x (N, M) -> the distances of rows i < j, in that order."""
    start = 0
    for i in range(len(x) - 1):
        end = start + len(x) - 1 - i
        _norms(x[i + 1 :] - x[i], p, out[start:end])
        start = end


def _norms(difference: Array, p: float, out: Array) -> None:
    """difference (N, M), which is overwritten -> the p-norms of its rows."""
    if p == 2:
        np.sqrt(np.einsum("nm,nm->n", difference, difference, out=out), out=out)
        return
    np.abs(difference, out=difference)
    if p == 0:
        np.minimum(np.ceil(difference, out=difference), 1, out=difference)
    elif p not in (1, np.inf):
        np.power(difference, p, out=difference)
    (np.maximum if p == np.inf else np.add).reduce(difference, axis=1, out=out, initial=0)
    _root(p, out)


def _accumulate(difference: Array, p: float, out: Array) -> None:
    """Add |difference|^p, overwriting the difference; for p = 0 count what differs, for infinity keep the largest."""
    np.abs(difference, out=difference)
    if p == 0:
        out += np.minimum(np.ceil(difference), 1)  # NaN stays
    elif p == np.inf:
        np.maximum(out, difference, out=out)
    else:
        out += np.power(difference, p, out=difference) if p != 1 else difference


def _root(p: float, out: Array) -> None:
    if p == 2:
        np.sqrt(out, out=out)
    elif p not in (0, 1, np.inf):
        np.power(out, 1 / p, out=out)
