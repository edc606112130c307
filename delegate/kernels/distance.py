"""Distances between the rows of matrices."""

from __future__ import annotations

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import row_blocks
from delegate.kernels.table import FLOAT, TABLE
from delegate.program.dtypes import DType

_FLOAT = FLOAT - {DType.float16}
_MANY = 25  # rows, above which torch multiplies matrices
_NEVER = 2
_SMALL = 1 << 16  # elements of all differences, up to which they are computed at once


@TABLE.kernel("aten._cdist_forward.default", dtypes=_FLOAT)
def cdist(left: Array, right: Array, p: float, compute_mode: int | None, *, out: Array) -> None:
    """Compute the p-norms of all differences of left (..., P, M) and right (..., R, M) -> (..., P, R), feature by
    feature.

    Euclidean distances of many rows are computed from products, as in torch (compute_mode 1: always, 2: never).
    """
    by_products = compute_mode == 1 or (compute_mode != _NEVER and max(out.shape[-2:]) > _MANY)
    if p == 2 and by_products and out.dtype == np.float32:
        _compute_euclidean(left, right, out)
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
    _take_root(p, out)


def _compute_euclidean(left: Array, right: Array, out: Array) -> None:
    """Compute |x - y| as the root of |x|^2 + |y|^2 - 2 xy: one product, in float64 for accuracy of close rows."""
    wide, transposed = _append_squares(left, -2, last=False), _append_squares(right, 1, last=True).swapaxes(-1, -2)
    for rows in row_blocks(out.shape[-2], out.size // max(out.shape[-2], 1)):
        total = np.matmul(wide[..., rows, :], transposed)
        np.sqrt(np.maximum(total, 0, out=total), out=out[..., rows, :], casting="same_kind")


def _append_squares(x: Array, factor: int, *, last: bool) -> Array:
    """Append |x|^2 and 1 (or 1 and |x|^2 if last) to x (..., N, M) times a factor -> (..., N, M + 2), in float64."""
    extended = np.ones((*x.shape[:-1], x.shape[-1] + 2))
    np.multiply(x, factor, out=extended[..., :-2], dtype=np.float64)
    np.einsum("...m,...m->...", x, x, out=extended[..., -1 if last else -2], dtype=np.float64)
    return extended


@TABLE.kernel("aten._pdist_forward.default", dtypes=_FLOAT)
def pdist(x: Array, p: float, *, out: Array) -> None:
    """Compute the distances of rows i < j of x (N, M), in that order."""
    if out.size != len(x) * (len(x) - 1) // 2:
        raise KernelError(f"{len(x)} rows do not have {out.size} pairs")
    start = 0
    for i in range(len(x) - 1):
        end = start + len(x) - 1 - i
        _compute_norms(x[i + 1 :] - x[i], p, out[start:end])
        start = end


def _compute_norms(difference: Array, p: float, out: Array) -> None:
    """Compute the p-norms of a difference's rows (N, M), which is overwritten."""
    if p == 2:
        np.sqrt(np.einsum("nm,nm->n", difference, difference, out=out), out=out)
        return
    np.abs(difference, out=difference)
    if p == 0:
        np.minimum(np.ceil(difference, out=difference), 1, out=difference)
    elif p not in (1, np.inf):
        np.power(difference, p, out=difference)
    (np.maximum if p == np.inf else np.add).reduce(difference, axis=1, out=out, initial=0)
    _take_root(p, out)


def _accumulate(difference: Array, p: float, out: Array) -> None:
    """Add |difference|^p, overwriting the difference; count differences for p = 0, take the maximum for infinity."""
    np.abs(difference, out=difference)
    if p == 0:
        out += np.minimum(np.ceil(difference), 1)  # NaN stays
    elif p == np.inf:
        np.maximum(out, difference, out=out)
    else:
        out += np.power(difference, p, out=difference) if p != 1 else difference


def _take_root(p: float, out: Array) -> None:
    if p == 2:
        np.sqrt(out, out=out)
    elif p not in (0, 1, np.inf):
        np.power(out, 1 / p, out=out)
