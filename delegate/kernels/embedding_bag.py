"""Sums, means and maxima over bags of embeddings."""

from __future__ import annotations

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.indexing import checked
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import FLOAT
from delegate.program.dtypes import DType
from delegate.program.raw import combine_at, repeated

_SUM, _MEAN = 0, 1  # the third mode is max


@TABLE.kernel(
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
    dtypes=(FLOAT | {DType.int32, DType.int64}) - {DType.float16},
)
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    sample_weights: Array | None,
    include_last_offset: bool,
    padding_idx: int | None,
    *,
    out: tuple[Array, Array, Array, Array],
) -> None:
    """weight (rows, width), indices (n), offsets (bags): where each bag begins -> (bags, width).

    The other results are, as torch makes them on the CPU: the bag of every index, the size of every bag, the index
    that gave each maximum; those that torch leaves empty are left so. Indices equal to padding_idx do not count.
    """
    result, bag_of, sizes, winners = out
    bounds = np.append(offsets[: len(result)], len(indices))
    if include_last_offset:
        bounds[-1] = offsets[-1]
    lengths = np.diff(bounds)
    bags = repeated(np.arange(len(result)), lengths, 0, int(bounds[-1]) - int(bounds[0]))
    used = checked(indices[: len(bags)], len(weight))
    if bag_of.size == len(bags):
        bag_of[...] = bags
    else:
        bag_of.fill(0)
    counted = used != (-1 if padding_idx is None else padding_idx)
    counts = np.bincount(bags[counted], minlength=len(result))
    sizes[...] = counts if sizes.shape == counts.shape else 0
    rows = weight[used]
    if sample_weights is not None:
        rows = rows * sample_weights[: len(bags), None]
    result.fill(0)
    if mode <= _MEAN:
        combine_at(np.add, result, (bags[counted],), rows[counted])
        if mode == _MEAN:
            result /= np.maximum(counts, 1)[:, None].astype(result.dtype)
        winners.fill(0)
        return
    winners[...] = -1 if winners.size else 0
    for bag in range(len(result)):
        members = np.flatnonzero(counted & (bags == bag))
        if len(members):
            best = rows[members].argmax(axis=0)
            result[bag] = rows[members[best], np.arange(weight.shape[1])]
            if winners.shape == result.shape:
                winners[bag] = used[members[best]]


@TABLE.kernel("aten.embedding_bag.padding_idx", dtypes=(FLOAT | {DType.int32, DType.int64}) - {DType.float16})
def embedding_bag_padded(
    weight: Array, indices: Array, offsets: Array, scale_grad_by_freq: bool, mode: int, sparse: bool,
    sample_weights: Array | None, last: bool, padding_idx: int | None, *, out: tuple[Array, Array, Array, Array],
) -> None:  # fmt: skip
    """As `embedding_bag`; a negative padding_idx counts from the end of the weight."""
    row = None if padding_idx is None else padding_idx % len(weight)
    embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, sample_weights, last, row, out=out)


@TABLE.kernel("aten.embedding_bag.default", dtypes=(FLOAT | {DType.int32, DType.int64}) - {DType.float16})
def embedding_bag_whole(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    sample_weights: Array | None,
    include_last_offset: bool,
    *,
    out: tuple[Array, Array, Array, Array],
) -> None:
    """As `embedding_bag`, without padding."""
    embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, sample_weights, include_last_offset, None, out=out
    )
