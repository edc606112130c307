"""Modules with explicit quantize and dequantize operators, with parameters drawn from a generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401 - registers the operators

QD = torch.ops.quantized_decomposed


@dataclass(frozen=True, slots=True)
class Parameters:
    """Scale and zero point of a tensor in int8 or uint8."""

    scale: float
    zero_point: int
    dtype: torch.dtype = torch.int8

    def coded(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize x."""
        info = torch.iinfo(self.dtype)
        return QD.quantize_per_tensor(x, self.scale, self.zero_point, info.min, info.max, self.dtype)

    def decoded(self, x: torch.Tensor) -> torch.Tensor:
        """Dequantize x."""
        info = torch.iinfo(self.dtype)
        return QD.dequantize_per_tensor(x, self.scale, self.zero_point, info.min, info.max, self.dtype)

    def through(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize and dequantize x."""
        return self.decoded(self.coded(x))


def drawn(generator: torch.Generator, scale: float = 0.03, dtype: torch.dtype = torch.int8) -> Parameters:
    """Draw parameters with a scale near the requested one, and any zero point."""
    info = torch.iinfo(dtype)
    factor = float(torch.rand((), generator=generator)) * 1.9 + 0.1
    return Parameters(scale * factor, int(torch.randint(info.min, info.max + 1, (), generator=generator)), dtype)


def fitted(values: Sequence[torch.Tensor], dtype: torch.dtype = torch.int8) -> Parameters:
    """Return parameters for the range of values, as an observer computes them."""
    low, high = min(0.0, *(float(v.min()) for v in values)), max(0.0, *(float(v.max()) for v in values))
    info = torch.iinfo(dtype)
    scale = max((high - low) / 255, 1e-6)
    return Parameters(scale, max(info.min, min(info.max, round(info.min - low / scale))), dtype)


class Coded(nn.Module):
    """A function between dequantize and quantize: its inputs and its result are in integers.

    Args:
        function: of the inputs.
        inputs: their parameters; None leaves one in floats.
        result: of the result; None leaves it in floats.
    """

    def __init__(
        self, function: Callable[..., Any], inputs: Sequence[Parameters | None], result: Parameters | None
    ) -> None:
        super().__init__()
        self.function, self.inputs, self.result = function, inputs, result

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        arguments = [v if p is None else p.through(v) for v, p in zip(values, self.inputs, strict=True)]
        y = self.function(*arguments)
        return y if self.result is None else self.result.through(y)


class Weights(nn.Module):
    """A layer whose weight is int8 (or int4), per tensor or per channel, and its bias in floats or int32.

    Args:
        call: of input, weight and bias.
        weight: floats.
        axis: of the scales; None for one.
        bias: or None.
        bits: 8 or 4.
        act: what follows.
    """

    def __init__(
        self,
        call: Callable[..., torch.Tensor],
        weight: torch.Tensor,
        axis: int | None = 0,
        bias: torch.Tensor | None = None,
        bits: int = 8,
        act: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    ) -> None:
        super().__init__()
        self.call, self.axis, self.act = call, axis, act
        self.high = 127 if bits == 8 else 7
        dims = [d for d in range(weight.dim()) if d != axis]
        sizes = weight.abs().amax(dims if axis is not None else None).clamp_min(1e-6)
        scale = sizes / self.high
        shape = [-1 if d == axis else 1 for d in range(weight.dim())]
        wide = scale.reshape(shape) if axis is not None else scale
        self.register_buffer("weight", (weight / wide).round().clamp(-self.high, self.high).to(torch.int8))
        self.register_buffer("scale", scale if axis is not None else None)
        self.register_buffer("zero", torch.zeros(scale.numel(), dtype=torch.int64) if axis is not None else None)
        self.number = float(scale) if axis is None else 0.0
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = (-self.high, self.high, torch.int8)
        if self.axis is None:
            weight = QD.dequantize_per_tensor(self.weight, self.number, 0, *ends)
        else:
            weight = QD.dequantize_per_channel(self.weight, self.scale, self.zero, self.axis, *ends)
        return self.act(self.call(x, weight, self.bias))


class RunTime(nn.Module):
    """A layer after PT2E's quantization at run time, with one range per tensor."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero = QD.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
        coded = QD.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        return self.layer(QD.dequantize_per_tensor.tensor(coded, scale, zero, -128, 127, torch.int8))


class RunTimeRows(RunTime):
    """A layer after torchao's quantization at run time, with one range per row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block, low, high = (*(1 for _ in x.shape[:-1]), x.shape[-1]), -128, 127
        ranges = ("ASYMMETRIC", block, torch.int8, low, high, 1e-7, torch.float32, torch.int32)
        scale, zero = torch.ops.torchao.choose_qparams_affine(x, *ranges)
        coded = torch.ops.torchao.quantize_affine(x, block, scale, zero, torch.int8, low, high)
        seen = torch.ops.torchao.dequantize_affine(coded, block, scale, zero, torch.int8, low, high)
        result: torch.Tensor = self.layer(seen)
        return result
