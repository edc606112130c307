"""Decompositions in place of torch's own where those do not give all that the operator gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

_RRELU = torch.ops.aten.rrelu_with_noise_functional.default


def corrected(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Torch's table of decompositions, put right."""
    attention = table.get(_FLASH)
    found = {**table, _RRELU: _rrelu}
    return {**found, _FLASH: _flash_attention(attention)} if attention is not None else found


def _rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Tensor, Tensor]:
    """Torch's own decomposition is not among those to core ATen. The noise holds the slope of each element."""
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise
    slopes = torch.where(x > 0, torch.ones_like(x), torch.ops.aten.uniform(x, lower, upper))
    return x * slopes, slopes


def _flash_attention(attention: Callable[..., Any]) -> Callable[..., Any]:
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Torch's own gives the weights, (N, H, L, S), for the logarithms of the rows' sums, (N, H, L)."""
        output, _ = attention(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        wide = query.dtype if query.dtype is torch.float64 else torch.float32
        given, shared = query.to(wide), query.size(1) // key.size(1)
        keys = key.to(wide) if shared == 1 else key.to(wide).repeat_interleave(shared, 1)
        factor = 1 / math.sqrt(query.size(3)) if scale is None else scale
        scores = torch.matmul(given * factor, keys.transpose(2, 3))
        if is_causal:
            later = torch.ones(scores.shape[2:], dtype=torch.bool, device=query.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        if attn_mask is not None:  # numbers to add: who takes truth values turns them into these
            scores = scores + attn_mask
        return output, torch.logsumexp(scores, 3)

    return attend
