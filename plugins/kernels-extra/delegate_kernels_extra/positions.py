"""Reads and writes at positions: of the flattened tensor, of whole slices, and of nonzero elements."""

from __future__ import annotations

import numpy as np

from delegate.kernels.copies import CONVERTIBLE
from delegate.kernels.half_precision import Array
from delegate.kernels.indexing import SUMS, check_indices, combine, copy_for
from delegate.kernels.operands import WIDE
from delegate.kernels.table import COMPLEX
from delegate.kernels.views import along
from delegate.program.dtypes import DType
from delegate.program.raw import combine_at
from delegate_kernels_extra.table import TABLE


@TABLE.kernel("aten.put.default", dtypes=SUMS)
def put(x: Array, index: Array, source: Array, accumulate: bool, *, out: Array) -> None:
    """Copy `x` with the source's elements written, or added, at positions of the flattened tensor."""
    np.copyto(out, x)
    flat, places = out.reshape(-1), check_indices(index.reshape(-1), x.size, negative=True)
    if accumulate:
        combine_at(np.add, flat, (places,), source.reshape(-1))
    else:
        flat[places] = source.reshape(-1)


@TABLE.kernel("aten.embedding_renorm.default", dtypes=WIDE | {DType.int32, DType.int64})
def embedding_renorm(weight: Array, indices: Array, max_norm: float, order: float, *, out: Array) -> None:
    """Copy the weight (rows, width) and scale the used rows to a norm of at most max_norm."""
    np.copyto(out, weight)
    used = np.unique(check_indices(indices, len(weight)))
    norms = np.linalg.norm(weight[used], order, axis=1)
    out[used[norms > max_norm]] *= (max_norm / (norms[norms > max_norm] + 1e-7))[:, None].astype(out.dtype)


@TABLE.kernel("aten.nonzero_static.default", dtypes=CONVERTIBLE)
def nonzero_static(x: Array, size: int, fill: int, *, out: Array) -> None:
    """Write the first `size` coordinates of nonzero elements; fill missing ones."""
    coordinates = np.argwhere(x)[:size]
    out[: len(coordinates)] = coordinates
    out[len(coordinates) :] = fill


@TABLE.kernel("aten.index_reduce.default", dtypes=SUMS - {DType.bool} - COMPLEX, in_place=True)
def index_reduce(x: Array, dim: int, index: Array, source: Array, how: str, include_self: bool, *, out: Array) -> None:
    """Reduce whole slices like `scatter_reduce`; index (n) names the slice of `x` for every slice of the source."""
    out, index, source = copy_for(x, index, source, out)
    if index.size:
        combine(out, along(dim, out.ndim, check_indices(index, out.shape[dim])), source, how, include_self)
