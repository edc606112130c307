"""Sums, means and maxima over bags of embeddings."""

from __future__ import annotations

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.indexing import add_segments, check_indices
from delegate.kernels.table import FLOAT, TABLE
from delegate.program import raw
from delegate.program.dtypes import DType

_MEAN = 1  # mode 0 is the sum, and 2 is max


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
    """Reduce the rows of weight (rows, width) at indices (n) to (bags, width); offsets (bags) start the bags.

    The other results are as torch returns them on the CPU: the bag of every index, the size of every bag, and the index
    of each maximum. Results that torch leaves empty stay empty. Indices equal to padding_idx do not count.
    """
    result, bag_of, sizes, winners = out
    bounds = np.append(offsets[: len(result)], len(indices))
    if include_last_offset:
        bounds[-1] = offsets[-1]
    counts = np.diff(bounds)
    if len(offsets) and (bounds[0] != 0 or counts.min(initial=0) < 0 or bounds[-1] > len(indices)):
        raise KernelError(
            f"the offsets of bags run from {bounds[0]} to {bounds[-1]} over {len(indices)} indices, or they decrease",
            remedy="pass increasing offsets that begin at 0",
        )
    used = check_indices(indices[: bounds[-1]], len(weight))
    if bag_of.size == len(used):
        bag_of[...] = raw.repeated(np.arange(len(result)), counts, 0, len(used))
    else:
        bag_of.fill(0)
    weights = None if sample_weights is None else sample_weights[: len(used)]
    if padding_idx is not None and (left := used != padding_idx).sum() < len(used):
        counts = raw.occurrences(raw.repeated(np.arange(len(result)), counts, 0, len(used))[left], None, len(result))
        used, weights = used[left], None if weights is None else weights[left]
    sizes[...] = counts if sizes.shape == counts.shape else 0
    starts = np.cumsum(counts) - counts
    if mode > _MEAN:
        winners[...] = -1 if winners.size else 0
        _write_maxima(weight, used, starts, counts, result, winners if winners.shape == result.shape else None)
        return
    winners.fill(0)
    filled = np.flatnonzero(counts)
    source, rows = (weight, used) if weights is None else (weight[used] * weights[:, None], np.arange(len(used)))
    result.fill(0)
    add_segments(result, filled, source, rows, starts[filled], counts[filled])
    if mode == _MEAN:
        result /= np.maximum(counts, 1)[:, None].astype(result.dtype)


def _write_maxima(
    weight: Array, used: Array, starts: Array, counts: Array, result: Array, winners: Array | None
) -> None:
    """Write the maxima of every bag (0 for an empty bag) and the rows of the weight that contain them."""
    result.fill(0)
    for bag in np.flatnonzero(counts):
        members = used[starts[bag] : starts[bag] + counts[bag]]
        best = weight[members].argmax(axis=0)
        result[bag] = weight[members[best], np.arange(weight.shape[1])]
        if winners is not None:
            winners[bag] = members[best]
