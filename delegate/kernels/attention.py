"""Scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.softmax import exponentials
from delegate.kernels.table import BOOL, FLOAT, TABLE
from delegate.program.dtypes import DType

_DTYPES = (FLOAT - {DType.float16}) | BOOL
_SCRATCH = 1 << 16  # scores per block: they and their exponentials fit a cache


@TABLE.kernel("aten.scaled_dot_product_attention.default", dtypes=_DTYPES, whole=True, random=True)
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    *,
    out: Array,
) -> None:
    """Compute attention.

    query (..., L, E), key (..., S, E), value (..., S, V), mask (..., L, S): bools (True: attend) or numbers to add.
    With enable_gqa, key and value have fewer heads (third dimension from the end), each for several heads of the query.
    """
    if is_causal:
        mask = np.tri(query.shape[-2], key.shape[-2], dtype=bool)
    if enable_gqa:
        query, mask, out = _group_heads(query, key, mask, out)
    _attend(query, key, value, mask, dropout, scale, out)


def _group_heads(query: Array, key: Array, mask: Array | None, out: Array) -> tuple[Array, Array | None, Array]:
    """Return query, mask and result with the heads that share a key as additional rows, so that no key is copied.

    Raises:
        KernelError: the groups do not divide the heads.
    """
    *batch, heads, length, channels = query.shape
    groups = key.shape[-3]
    if groups < 1 or heads % groups:
        raise KernelError(f"the {heads} heads of the query are not divisible by the {groups} heads of the key")
    if mask is not None:
        mask = np.broadcast_to(mask, (*batch, heads, length, mask.shape[-1]))
        mask = mask.reshape(*batch, groups, -1, mask.shape[-1])
    query = query.reshape(*batch, groups, -1, channels)
    return query, mask, out.reshape(*batch, groups, -1, out.shape[-1], copy=False)


def _attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    dropout: float,
    scale: float | None,
    out: Array,
) -> None:
    factor = query.dtype.type(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    batch, shape = out.shape[:-2], (query.shape[-2], key.shape[-2])
    if mask is not None and mask.dtype == bool:
        mask = np.where(mask, query.dtype.type(0), query.dtype.type(-math.inf))
    query, key, value = (np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (query, key, value))
    if mask is not None:
        mask = np.broadcast_to(mask, (*batch, *shape))
    for index in _blocks(batch, math.prod(shape)):
        scores = np.matmul(query[index] * factor, key[index].swapaxes(-1, -2))
        if mask is not None:
            scores += mask[index]
        weights = np.empty_like(scores)
        sums = exponentials(scores, scores.ndim - 1, weights)
        if dropout:
            weights *= (TABLE.generator.random(weights.shape) >= dropout) / (1 - dropout)
        result = np.matmul(weights, value[index], out=out[index])
        result /= np.where(sums == 0, 1, sums)  # a fully masked row becomes zeros


def _blocks(batch: Sequence[int], size: int) -> Iterator[Any]:
    """Yield indices of the leading axes; each selects matrices of `size` elements that together fit a cache."""
    outer, rest = 0, math.prod(batch) * size
    while outer < len(batch) and rest > _SCRATCH:
        rest //= batch[outer]
        outer += 1
    if outer == 0:
        yield ...
        return
    step = max(1, _SCRATCH // rest)
    for index in np.ndindex(*batch[: outer - 1]):
        for start in range(0, batch[outer - 1], step):
            yield (*index, slice(start, start + step))
