"""Distances between the rows of matrices."""

from __future__ import annotations

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import FLOAT
from delegate.program.dtypes import DType

_FLOAT = FLOAT - {DType.float16}


@TABLE.kernel("aten._cdist_forward.default", "aten.cdist.default", dtypes=_FLOAT)
def cdist(left: Array, right: Array, p: float, compute_mode: int | None, *, out: Array) -> None:
    """left (..., P, M), right (..., R, M) -> (..., P, R), the p-norm of every difference; one feature at a time."""
    out.fill(0)
    part = np.empty_like(out)
    for feature in range(left.shape[-1]):
        np.subtract(left[..., :, feature, None], right[..., None, :, feature], out=part)
        _accumulate(part, p, out)
    _root(p, out)


@TABLE.kernel("aten._pdist_forward.default", "aten.pdist.default", dtypes=_FLOAT)
def pdist(x: Array, p: float, *, out: Array) -> None:
    """x (N, M) -> the distances of rows i < j, in that order."""
    out.fill(0)
    first, second = np.triu_indices(len(x), 1)
    for feature in range(x.shape[1]):
        _accumulate(x[first, feature] - x[second, feature], p, out)
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
