"""Scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np

from delegate.kernels.halves import Array
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import BOOL, FLOAT
from delegate.program.dtypes import DType

_DTYPES = (FLOAT - {DType.float16}) | BOOL
_SCRATCH = 1 << 20  # scores computed at a time: longer sequences take their heads in turn


@TABLE.kernel("aten.scaled_dot_product_attention.default", dtypes=_DTYPES, whole=True)
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
    """query (..., L, E), key (..., S, E), value (..., S, V), mask (..., L, S): bools that keep, or numbers to add.

    enable_gqa: key and value have fewer heads (third dimension from the end), each of which serves several of query.
    """
    if enable_gqa:
        shared = query.shape[-3] // key.shape[-3]
        key, value = key.repeat(shared, axis=-3), value.repeat(shared, axis=-3)
    _attend(query, key, value, mask, dropout, is_causal, scale, out, None)


@TABLE.kernel("aten._scaled_dot_product_flash_attention_for_cpu.default", dtypes=_DTYPES)
def flash_attention(
    query: Array,
    key: Array,
    value: Array,
    dropout: float,
    is_causal: bool,
    mask: Array | None,
    scale: float | None,
    *,
    out: tuple[Array, Array],
) -> None:
    """As `scaled_dot_product_attention`; the second result is the logarithm of each row's sum, (N, heads, L)."""
    _attend(query, key, value, mask, dropout, is_causal, scale, *out)


def _attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    out: Array,
    logsumexp: Array | None,
) -> None:
    factor = query.dtype.type(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    batch, shape = out.shape[:-2], (query.shape[-2], key.shape[-2])
    if is_causal:
        mask = np.tri(*shape, dtype=bool)
    query, key, value = (np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (query, key, value))
    if mask is not None:
        mask = np.broadcast_to(mask, (*batch, *shape))
    alone = 0  # leading axes that are taken one index at a time
    while alone < len(batch) and math.prod(batch[alone:]) * math.prod(shape) > _SCRATCH:
        alone += 1
    for index in np.ndindex(batch[:alone]):
        scores = np.matmul(query[index] * factor, key[index].swapaxes(-1, -2))
        sums = _softmax(scores, None if mask is None else mask[index])
        if dropout:
            scores *= (TABLE.generator.random(scores.shape) >= dropout) / (1 - dropout)
        np.matmul(scores, value[index], out=out[index])
        if logsumexp is not None:
            logsumexp[index] = sums[..., 0]


def _softmax(scores: Array, mask: Array | None) -> Array:
    """Softmax along the last axis, in place; a row that is masked out becomes zeros. Gives log(sum(exp(row)))."""
    if mask is not None and mask.dtype == bool:
        np.copyto(scores, -np.inf, where=~mask)
    elif mask is not None:
        scores += mask
    highest: Array = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    highest[np.isneginf(highest)] = 0
    scores -= highest
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    scores /= np.where(total == 0, 1, total)
    highest += np.log(total)
    return highest
