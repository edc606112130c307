"""Corrected decompositions: torch's own ones do not return all results of these operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # whose import registers the operators of quantized_decomposed
from torch import Tensor

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

_THRESHOLD = torch.ops.aten.threshold.default
_RRELU = torch.ops.aten.rrelu_with_noise_functional.default


def override_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return torch's table of decompositions with corrections."""
    attention = table.get(_FLASH)
    overridden: dict[Any, Callable[..., Any]] = {**table, _RRELU: _rrelu, **_FAKE_QUANTIZATION}
    if _THRESHOLD in table:
        overridden[_THRESHOLD] = partial(_threshold, table[_THRESHOLD])
    return {**overridden, _FLASH: _flash_attention(attention)} if attention is not None else overridden


def _threshold(own: Callable[..., Tensor], x: Tensor, threshold: float, value: float) -> Tensor:
    """Truncate the numbers for integers; torch's own decomposition computes integers in float32."""
    if x.is_floating_point():
        return own(x, threshold, value)
    return torch.where(x <= int(threshold), int(value), x).to(x.dtype)


def _rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Tensor, Tensor]:
    """Decompose rrelu, whose own decomposition is not among those to core ATen; noise has the slope of each element."""
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise
    slopes = torch.where(x > 0, torch.ones_like(x), torch.ops.aten.uniform(x, lower, upper))
    return x * slopes, slopes


def _fake_quantize_tensor(x: Tensor, scale: Any, zero_point: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return x quantized and decoded, in a form that integer backends match, and the mask of values in the range."""
    dtype = _integers(x, low, high)
    if dtype is None or isinstance(scale, Tensor):
        return _fake_quantized(x, scale, zero_point, low, high)
    decomposed = torch.ops.quantized_decomposed
    coded = decomposed.quantize_per_tensor(x, scale, zero_point, low, high, dtype)
    decoded = decomposed.dequantize_per_tensor(coded, scale, zero_point, low, high, dtype)
    return decoded, _fake_quantized(x, scale, zero_point, low, high)[1]


def _fake_quantize_by_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    rounded, mask = _fake_quantized(x, scale, zero_point, low, high)
    return torch.where(enabled != 0, rounded, x), mask | (enabled == 0)


def _fake_quantize_channels(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    sizes = [-1 if place == axis % x.dim() else 1 for place in range(x.dim())]
    rounded, mask = _fake_quantized(x, scale.reshape(sizes), zero_point.reshape(sizes), low, high)
    dtype = _integers(x, low, high)
    if dtype is None or zero_point.is_floating_point():
        return rounded, mask
    decomposed = torch.ops.quantized_decomposed
    coded = decomposed.quantize_per_channel(x, scale, zero_point, axis, low, high, dtype)
    return decomposed.dequantize_per_channel(coded, scale, zero_point, axis, low, high, dtype), mask


def _integers(x: Tensor, low: int, high: int) -> torch.dtype | None:
    """Return the 8-bit dtype of a range; None if it fits none, or if the input is not float32."""
    fits = (t for t in (torch.int8, torch.uint8) if torch.iinfo(t).min <= low and high <= torch.iinfo(t).max)
    return next(fits, None) if x.dtype is torch.float32 else None


def _fake_quantized(x: Tensor, scale: Any, zero_point: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return the reals of the quantized values, in floats, and the mask of values in the range."""
    wide = x.double() if x.dtype is torch.float64 else x.float()  # of 16 bits, as torch does
    if isinstance(scale, Tensor):
        scale = scale.float()
        step, per_step = scale.to(wide.dtype), (1 / scale).to(wide.dtype)
    else:
        step, per_step = float(np.float32(scale)), float(np.float32(1) / np.float32(scale))
    if isinstance(zero_point, Tensor) and zero_point.is_floating_point():
        # Torch rounds the product and the sum to float32 once, which decides ties.
        exact = wide.double() * torch.as_tensor(per_step).double() + zero_point.double()
        steps = torch.round(exact.to(wide.dtype))
    else:
        steps = torch.round(wide * per_step) + zero_point
    return ((steps.clamp(low, high) - zero_point) * step).to(x.dtype), (steps >= low) & (steps <= high)


_FAKE_QUANTIZATION: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize_tensor,
    torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _fake_quantize_by_tensors,
    torch.ops.aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize_channels,
}


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
        """Return the output and the logarithms of the rows' sums, (N, H, L), in place of the weights, (N, H, L, S)."""
        output, _ = attention(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        wide = query.dtype if query.dtype is torch.float64 else torch.float32
        wide_query, shared = query.to(wide), query.size(1) // key.size(1)
        keys = key.to(wide) if shared == 1 else key.to(wide).repeat_interleave(shared, 1)
        factor = 1 / math.sqrt(query.size(3)) if scale is None else scale
        scores = torch.matmul(wide_query * factor, keys.transpose(2, 3))
        if is_causal:
            later = torch.ones(scores.shape[2:], dtype=torch.bool, device=query.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        if attn_mask is not None:  # numbers to add: callers convert masks of truth values to numbers
            scores = scores + attn_mask
        return output, torch.logsumexp(scores, 3)

    return attend
