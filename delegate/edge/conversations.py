"""Preserved operators for conversations: they read and write caches and matrices of each conversation in place.

Authors of models call `delegate.cached_attention` in `forward`, after the writes of new keys to the cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
from torch import Tensor

_NAME = "delegate::cached_attention"
_P = ParamSpec("_P")


def _as_operator(compute: Callable[_P, Tensor]) -> Callable[_P, Tensor]:
    """Define the operator, and return a function that calls it; torch's own object has no help and no types."""
    operator = torch.library.custom_op(_NAME, compute, mutates_args=())

    @functools.wraps(compute)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Tensor:
        result: Tensor = operator(*args, **kwargs)
        return result

    return call


@_as_operator
def cached_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    rows: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Compute attention of each query to the entries of its cache up to its own position; later ones are never read.

    Example::

        keys, values = torch.zeros(2, 1, 4, 16, 8)  # the cache: buffers of the module
        query, new_keys, new_values = torch.rand(3, 1, 4, 2, 8)  # of the tokens at positions 5 and 6
        positions = torch.tensor([5, 6])
        keys.index_copy_(2, positions, new_keys)
        values.index_copy_(2, positions, new_values)
        result = delegate.cached_attention(query, keys, values, positions[None])

    Args:
        query: (batch, heads, length, channels).
        keys, values: the cache, (conversations, groups, capacity, channels): each group serves heads / groups
            adjacent heads. The dtype is the query's dtype, float16, bfloat16, or int8 with scales.
        positions: int64 (batch, length): the position of each query in its conversation.
        rows: int64 (batch): the conversation of each row of the batch; None: row i is conversation i.
        key_scales, value_scales: (conversations, groups, capacity): factors of int8 entries.
        scale: factor of the scores; None: channels ** -0.5.
        window: greatest number of entries that a query attends to, including its own; 0: all.
        softcap: scores become softcap * tanh(scores / softcap); 0: scores are unchanged.

    Returns:
        (batch, heads, length, channels of values), of the query's dtype.
    """
    if rows is not None:
        keys, values = keys[rows], values[rows]
        key_scales, value_scales = (None if s is None else s[rows] for s in (key_scales, value_scales))
    shared = query.shape[1] // keys.shape[1]
    wide = [
        (x.to(query.dtype) if s is None else x.to(query.dtype) * s[..., None].to(query.dtype))
        for x, s in ((keys, key_scales), (values, value_scales))
    ]
    k, v = (x.repeat_interleave(shared, 1) for x in wide)
    scores = query @ k.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    entries = torch.arange(keys.shape[2], device=keys.device)
    here = positions[:, None, :, None]
    seen = entries <= here
    if window:
        seen = seen & (entries > here - window)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


def _result_type(query: Tensor, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return an empty result of the right shape and dtype."""
    if query.shape[1] % keys.shape[1]:
        raise ValueError(
            f"the {query.shape[1]} heads of the query are not divisible by the {keys.shape[1]} groups of the cache"
        )
    return query.new_empty((*query.shape[:-1], values.shape[-1]))


torch.library.register_fake(_NAME, _result_type)


@torch.library.custom_op("delegate::update_cache", mutates_args=())
def update_cache(entries: Tensor, new: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    """Return a cache in which some entries are new. The kernel writes them in place if the cache is a state.

    Core ATen would convert them in one operator, and write them in another.

    Args:
        entries: (conversations, groups, capacity, ...), of any type.
        new: (batch, groups, length, ...): floats, which are converted to the type of the entries.
        positions: int64 (batch, length), at least 0.
        rows: int64 (batch): the conversation of each row of the batch.
    """
    updated = entries.clone()
    updated[rows[:, None], :, positions] = new.transpose(1, 2).to(entries.dtype)
    return updated


@update_cache.register_fake
def _make_updated_type(entries: Tensor, new: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    """Return an empty result of the right shape and dtype."""
    return torch.empty_like(entries)


@torch.library.custom_op("delegate::low_rank_product", mutates_args=())
def low_rank_product(x: Tensor, first: Tensor, second: Tensor, ranks: Tensor, rows: Tensor) -> Tensor:
    """Multiply each token with the two matrices of its conversation, as LoRA adapters do.

    The kernel reads the matrices in place, where core ATen would copy the matrices of each token.

    Args:
        x: (tokens, ..., inputs).
        first: (conversations, most, inputs): the matrix from the inputs to the rank of each conversation.
        second: (conversations, most, outputs): the matrix from that rank to the outputs.
        ranks: int64 (conversations), from 0 to `most`: rows after a rank are never read, where rank 0 gives zeros.
        rows: int64 (tokens): the conversation of each token.

    Returns:
        (tokens, ..., outputs).
    """
    unread = (torch.arange(first.shape[1], device=x.device) >= ranks[rows, None])[..., None]
    down, up = (matrix[rows].masked_fill(unread, 0) for matrix in (first, second))
    result = x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1]) @ down.mT @ up
    return result.reshape(*x.shape[:-1], second.shape[-1])


@low_rank_product.register_fake
def _make_product_type(x: Tensor, first: Tensor, second: Tensor, ranks: Tensor, rows: Tensor) -> Tensor:
    """Return an empty result of the right shape and dtype."""
    return x.new_empty((*x.shape[:-1], second.shape[-1]))
