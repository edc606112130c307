"""One case per row of the translations: operator -> a function that exports to it, and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
from torch import nn

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]

torch.manual_seed(0)
X = torch.randn(2, 8, 6, 6)
POSITIVE = X.abs() + 0.5
UNIT = X.clamp(-0.9, 0.9)
MATRIX, OTHER = torch.randn(5, 7), torch.randn(5, 7)
BATCHED = torch.randn(3, 5, 7)
INDEX = torch.tensor([2, 0, 1, 1])
MASK = MATRIX > 0

# Steps, so that float16 rounds none of them elsewhere than float32.
STEPS = torch.arange(-16, 19).view(5, 7) * 0.25
INTEGERS = torch.arange(-120, 119, 7).to(torch.int8)[:35].view(5, 7)
quantized = torch.ops.quantized_decomposed

_UNARY = {
    "acosh": POSITIVE + 1,
    **dict.fromkeys(("acos", "asin", "atanh"), UNIT),
    **dict.fromkeys(("log", "reciprocal", "rsqrt", "sqrt"), POSITIVE),
    **dict.fromkeys(
        ("abs", "asinh", "atan", "ceil", "cos", "cosh", "erf", "exp", "floor", "neg", "relu", "round", "sigmoid", "sin",
         "sinh", "tan", "tanh"),
        X,
    ),
}  # fmt: skip
_COMPARE = ("eq", "gt", "lt", "ge", "le")


def weight(*shape: int) -> torch.Tensor:
    """A weight, the same at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)) / 4


def _with_half(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return function(x, 0.5)


def _in_16_bits(x: torch.Tensor) -> torch.Tensor:
    parameters = (2**-12, 2**15, 0, 2**16 - 1, torch.uint16)
    return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *parameters), *parameters)


def _quantized_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor
) -> torch.Tensor:
    decoded = quantized.dequantize_per_channel(weight, scales, zero_points, 0, -128, 127, torch.int8)
    return _in_16_bits(F.linear(_in_16_bits(x), decoded))


class Constant(nn.Module):
    """A function of its input and of weights, which are constants of the program."""

    def __init__(self, function: Callable[..., Any], *weights: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.names = [f"w{i}" for i in range(len(weights))]
        for name, value in zip(self.names, weights, strict=True):
            self.register_buffer(name, value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *(getattr(self, n) for n in self.names))


CASES: dict[str, Case] = {
    **{f"aten.{name}.default": (getattr(torch, name), (x,)) for name, x in _UNARY.items()},
    **{f"aten.{n}.Tensor": (getattr(torch, n), (MATRIX, OTHER)) for n in ("add", "sub", "mul", "div")},
    **{f"aten.{n}.Tensor": (getattr(torch, n), (MATRIX, OTHER)) for n in _COMPARE},
    **{f"aten.{n}.Scalar": (partial(_with_half, getattr(torch, n)), (MATRIX,)) for n in _COMPARE},
    "aten.sum.dim_IntList": (lambda x: x.sum((1, 3)), (X,)),
    "aten.mean.dim": (lambda x: x.mean((-1, -2), keepdim=True), (X,)),
    "aten.amax.default": (lambda x: x.amax(1), (X,)),
    "aten.amin.default": (lambda x: x.amin(-1, keepdim=True), (X,)),
    "aten.pow.Tensor_Scalar": (lambda x: x**3, (X,)),
    "aten.pow.Tensor_Tensor": (torch.pow, (POSITIVE, X)),
    "aten.maximum.default": (torch.maximum, (MATRIX, OTHER)),
    "aten.minimum.default": (torch.minimum, (MATRIX, OTHER)),
    "aten.clamp.default": (lambda x: x.clamp(-0.5, 1.0), (X,)),
    "aten.hardtanh.default": (lambda x: F.hardtanh(x, 0.0, 6.0), (X,)),
    "aten.logical_not.default": (lambda x: torch.logical_not(x > 0), (MATRIX,)),
    "aten.logical_and.default": (lambda x, y: torch.logical_and(x > 0, y > 0), (MATRIX, OTHER)),
    "aten.logical_or.default": (lambda x, y: torch.logical_or(x > 0, y > 0), (MATRIX, OTHER)),
    "aten.where.self": (lambda x, y: torch.where(x > 0, x, y), (MATRIX, OTHER)),
    "aten.leaky_relu.default": (lambda x: F.leaky_relu(x, 0.1), (X,)),
    "aten.elu.default": (F.elu, (X,)),
    "aten.gelu.default": (F.gelu, (X,)),
    "aten.silu.default": (F.silu, (X,)),
    "aten.hardswish.default": (F.hardswish, (X,)),
    "aten.hardsigmoid.default": (F.hardsigmoid, (X,)),
    "aten._softmax.default": (lambda x: x.softmax(-1), (X,)),
    "aten._log_softmax.default": (lambda x: x.log_softmax(-1), (X,)),
    "aten.convolution.default": (
        Constant(lambda x, w, b: F.conv2d(x, w, b, 2, 1), weight(4, 8, 3, 3), weight(4)),
        (X,),
    ),
    "aten.linear.default": (Constant(F.linear, weight(4, 7), weight(4)), (BATCHED,)),
    "aten.addmm.default": (Constant(lambda x, b, w: torch.addmm(b, x, w), weight(4), weight(7, 4)), (MATRIX,)),
    "aten.mm.default": (lambda x, y: torch.mm(x, y.t()), (MATRIX, OTHER)),
    "aten.bmm.default": (lambda x: torch.bmm(x, x.transpose(1, 2)), (BATCHED,)),
    "aten.matmul.default": (lambda x: x @ x.transpose(2, 3), (X,)),
    "aten.scaled_dot_product_attention.default": (
        lambda x: F.scaled_dot_product_attention(x, x + 1, x - 1, attn_mask=torch.ones(6, 6).tril().bool()),
        (X,),
    ),
    "aten.avg_pool2d.default": (lambda x: F.avg_pool2d(x, 3, 2, 1), (X,)),
    "aten.max_pool2d_with_indices.default": (lambda x: F.max_pool2d(x, 3, 2, 1), (X,)),
    "aten.adaptive_avg_pool2d.default": (lambda x: F.adaptive_avg_pool2d(x, 1), (X,)),
    "aten.layer_norm.default": (
        Constant(lambda x, w, b: F.layer_norm(x, (7,), w, b), weight(7), weight(7)),
        (BATCHED,),
    ),
    "aten._native_batch_norm_legit_no_training.default": (nn.BatchNorm2d(8).requires_grad_(False).eval(), (X,)),
    "aten.view.default": (lambda x: x.view(2, 8, 36), (X,)),
    "aten.expand.default": (lambda x: x[:, None].expand(5, 3, 7), (MATRIX,)),
    "aten.permute.default": (lambda x: x.permute(0, 2, 3, 1), (X,)),
    "aten.squeeze.dims": (lambda x: x[:, None].squeeze(1) * 2, (MATRIX,)),
    "aten.unsqueeze.default": (lambda x: x.unsqueeze(1), (MATRIX,)),
    "aten.cat.default": (lambda x, y: torch.cat((x, y), 1), (MATRIX, OTHER)),
    "aten.slice.Tensor": (lambda x: x[:, 1:5], (X,)),
    "aten.select.int": (lambda x: x[:, 2], (X,)),
    "aten.split_with_sizes.default": (lambda x: torch.split(x, (2, 6), 1), (X,)),
    "aten.constant_pad_nd.default": (lambda x: F.pad(x, (1, 2, 0, 1)), (X,)),
    "aten.embedding.default": (Constant(F.embedding, weight(3, 7)), (INDEX,)),
    "aten.index.Tensor": (Constant(lambda x, i: x[i], INDEX), (MATRIX,)),
    "quantized_decomposed.quantize_per_tensor.default": (
        lambda x: quantized.quantize_per_tensor(x.relu(), 0.25, 3, -128, 127, torch.int8),
        (STEPS,),
    ),
    "quantized_decomposed.dequantize_per_tensor.default": (
        lambda x: quantized.dequantize_per_tensor(x, 0.25, 3, -128, 127, torch.int8).relu(),
        (INTEGERS,),
    ),
    "quantized_decomposed.dequantize_per_channel.default": (
        Constant(_quantized_linear, INTEGERS[:4], weight(4).abs() / 100, torch.zeros(4, dtype=torch.int64)),
        (MATRIX,),
    ),
}  # fmt: skip
