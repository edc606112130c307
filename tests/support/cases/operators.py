"""Cases of operators by family: what is tried -> a function that exports to it, and its inputs.

A case is named after its operator; what is special about it follows after a comma.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
from torch import nn

from tests.support.functions import Function

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]

torch.manual_seed(0)
X = torch.randn(2, 8, 6, 6)
POSITIVE = X.abs() + 0.5
UNIT = X.clamp(-0.9, 0.9)
LINE, VOLUME, VOLUMES = torch.randn(2, 8, 12), torch.randn(1, 4, 6, 6, 6), torch.randn(3, 3, 3, 3, 3)
MATRIX, OTHER = torch.randn(5, 7), torch.randn(5, 7)
BATCHED = torch.randn(3, 5, 7)
INDEX = torch.tensor([2, 0, 1, 1])
NUMBERS, NUMBERS_2 = torch.randint(-9, 9, (5, 7)).int(), torch.randint(1, 9, (5, 7)).int()
LARGE = torch.tensor([2**31 - 1, -(2**31), 2**24 + 1, 123456789, -7], dtype=torch.int32)
HALVES = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.3, -0.3])

BRINKS = torch.tensor([0.9, -0.9, 6.0, -6.0, 2.5, -2.5, 0.0])  # whole multiples of 0.3 and their neighbours
SMALL = torch.tensor([1e-6, -1e-6, 1e-3, 0.3, -0.3, 0.51, 3.0, -0.7])
WEIRD = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 0.0, -2.5])
PLACES = torch.randint(0, 5, (5, 7), generator=torch.Generator().manual_seed(2))
GRID = torch.rand(2, 4, 5, 2, generator=torch.Generator().manual_seed(3)) * 2.4 - 1.2

# Steps, so that float16 rounds none of them elsewhere than float32.
STEPS = torch.arange(-16, 19).view(5, 7) * 0.25
INTEGERS = torch.arange(-120, 119, 7).to(torch.int8)[:35].view(5, 7)
quantized = torch.ops.quantized_decomposed

_UNARY = {
    "acosh": POSITIVE + 1,
    **dict.fromkeys(("acos", "asin", "atanh", "tan"), UNIT),
    **dict.fromkeys(("log", "log2", "log10", "reciprocal", "rsqrt", "sqrt"), POSITIVE),
    **dict.fromkeys(
        ("abs", "asinh", "atan", "ceil", "cos", "cosh", "erf", "exp", "exp2", "floor", "neg", "relu", "round",
         "sigmoid", "sign", "sin", "sinh", "tanh", "trunc"),
        X,
    ),
}  # fmt: skip
_COMPARE = ("eq", "ne", "gt", "lt", "ge", "le")
_TRUTHS = ("and", "or", "xor")


def weight(*shape: int) -> torch.Tensor:
    """A weight, the same at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)) / 4


def _with_half(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return function(x, 0.5)


def _of_signs(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.Tensor:
    return function(*(x > 0 for x in inputs))


def _in_16_bits(x: torch.Tensor) -> torch.Tensor:
    parameters = (2.5e-4, 2**15, 0, 2**16 - 1, torch.uint16)  # few quotients of floats are halfway between integers
    return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *parameters), *parameters)


def _quantized_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor
) -> torch.Tensor:
    decoded = quantized.dequantize_per_channel(weight, scales, zero_points, 0, -128, 127, torch.int8)
    return _in_16_bits(F.linear(_in_16_bits(x), decoded))


def _put(index: Callable[[torch.Tensor], Any], x: torch.Tensor, values: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[index(i)] = values
    return x


def _round(mode: str | None, x: torch.Tensor, y: Any) -> torch.Tensor:
    return torch.div(x, y, rounding_mode=mode)


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


_CONVOLUTION = "aten.convolution.default"
_RESIZED = {
    f"aten.upsample_{mode}2d.vec, {what}": (partial(F.interpolate, mode=mode, **options), (X,))
    for mode in ("nearest", "bilinear")
    for what, options in {
        "twice": {"scale_factor": 2},
        "size": {"size": (9, 10)},
        "smaller": {"size": (3, 4)},
        "1.5 times": {"scale_factor": 1.5},
        "1.3 times": {"scale_factor": 1.3},
        **({"corners": {"size": (9, 11), "align_corners": True}} if mode == "bilinear" else {}),
    }.items()
}

_INTERPOLATED = {
    f"aten.{name}.vec, {what}": (partial(F.interpolate, **{"mode": mode, "scale_factor": 2.0, **options}), (x,))
    for name, mode, x, cases in (
        ("upsample_linear1d", "linear", LINE, {"twice": {}}),
        ("upsample_trilinear3d", "trilinear", VOLUME, {"twice": {}}),
        ("upsample_bicubic2d", "bicubic", X, {
            "twice": {}, "smaller": {"size": (3, 4), "scale_factor": None},
            "corners": {"scale_factor": 1.5, "align_corners": True},
        }),
        ("_upsample_bilinear2d_aa", "bilinear", X, {"smaller": {"scale_factor": 0.6, "antialias": True}}),
        ("_upsample_bicubic2d_aa", "bicubic", X, {"smaller": {"scale_factor": 0.6, "antialias": True}}),
        ("upsample_nearest1d", "nearest", LINE, {"1.5 times": {"scale_factor": 1.5}}),
        ("upsample_nearest3d", "nearest", VOLUME, {"twice": {}}),
        ("_upsample_nearest_exact1d", "nearest-exact", LINE, {"twice": {}}),
        ("_upsample_nearest_exact2d", "nearest-exact", X, {
            "twice": {}, "smaller": {"size": (4, 3), "scale_factor": None},
        }),
        ("_upsample_nearest_exact3d", "nearest-exact", VOLUME, {"twice": {}}),
    )
    for what, options in cases.items()
}  # fmt: skip
_SAMPLED = {
    f"aten.grid_sampler_2d.default, {mode} {padding}": (
        partial(F.grid_sample, mode=mode, padding_mode=padding, align_corners=False),
        (X, GRID),
    )
    for mode, padding in (
        ("bilinear", "zeros"), ("bilinear", "border"),
        ("bilinear", "reflection"), ("nearest", "zeros"), ("bicubic", "zeros"),
    )
}  # fmt: skip

FAMILIES: dict[str, dict[str, Case]] = {
    "elementwise": {
        **{f"aten.{name}.default": (getattr(torch, name), (x,)) for name, x in _UNARY.items()},
        "aten.round.default, halves": (torch.round, (HALVES,)),
        "aten.trunc.default, halves": (torch.trunc, (HALVES,)),
        **{f"aten.{n}.Tensor": (getattr(torch, n), (MATRIX, OTHER)) for n in ("add", "sub", "mul", "div")},
        **{
            f"aten.{n}.Tensor, integers": (getattr(torch, n), (NUMBERS, NUMBERS_2))
            for n in ("add", "sub", "mul", *_COMPARE)
        },
        "aten.add.Tensor, overflow": (lambda x: x + x, (LARGE,)),
        "aten.mul.Tensor, overflow": (lambda x: x * x, (LARGE,)),
        "aten.add.Tensor, large": (lambda x: x + x, (LARGE // 4 + 1,)),
        "aten.eq.Tensor, large": (torch.eq, (LARGE, LARGE - 1)),
        "aten.maximum.default, large": (torch.maximum, (LARGE, LARGE // 4 * 4)),
        "aten.add.Tensor, number": (lambda x: x + 3, (NUMBERS,)),
        "aten.add.Tensor, alpha": (lambda x, y: torch.add(x, y, alpha=2), (MATRIX, OTHER)),
        "aten.sub.Tensor, alpha": (lambda x, y: torch.sub(x, y, alpha=0.5), (MATRIX, OTHER)),
        "aten.sub.Tensor, from a number": (lambda x: 3 - x, (MATRIX,)),
        **{f"aten.{n}.Tensor": (getattr(torch, n), (MATRIX, OTHER)) for n in _COMPARE},
        **{f"aten.{n}.Scalar": (partial(_with_half, getattr(torch, n)), (MATRIX,)) for n in _COMPARE},
        **{
            f"aten.{n}.Tensor{what}": (getattr(torch, n), operands)
            for n in ("remainder", "fmod")
            for what, operands in {
                "": (STEPS, STEPS.flip(0) + 0.125),
                ", integers": (NUMBERS, NUMBERS_2 * NUMBERS.sign().add(NUMBERS == 0)),
                ", broadcast": (STEPS, STEPS[:, :1].abs() + 0.5),
            }.items()
        },
        "aten.remainder.Scalar": (lambda x: x % 0.75, (STEPS,)),
        "aten.remainder.Scalar, integers": (lambda x: x % -3, (NUMBERS,)),
        "aten.remainder.Scalar_Tensor": (lambda x: torch.remainder(2.5, x), (STEPS + 0.125,)),
        "aten.fmod.Scalar": (lambda x: torch.fmod(x, -0.75), (STEPS,)),
        **{
            f"aten.div.Tensor_mode, {mode}{what}": (partial(_round, mode), operands)
            for mode in ("floor", "trunc")
            for what, operands in {
                "": (STEPS, STEPS.flip(0) + 0.125),
                " integers": (NUMBERS, NUMBERS_2 * NUMBERS.sign().add(NUMBERS == 0)),
            }.items()
        },
        "aten.div.Tensor_mode, brinks": (partial(_round, "floor"), (BRINKS, torch.tensor(0.3))),
        "aten.div.Tensor_mode, a number": (lambda x: x // 3, (NUMBERS,)),
        "aten.expm1.default": (torch.expm1, (SMALL,)),
        "aten.log1p.default": (torch.log1p, (SMALL,)),
        "aten.expm1.default, relative": (lambda x: torch.expm1(x) / x, (SMALL,)),
        "aten.log1p.default, relative": (lambda x: torch.log1p(x) / x, (SMALL,)),
        "aten.erfc.default": (torch.erfc, (X,)),
        "aten.erfc.default, relative": (lambda x: torch.erfc(x) * torch.exp(x * x), (POSITIVE,)),
        "aten.isnan.default": (torch.isnan, (WEIRD,)),
        "aten.isinf.default": (torch.isinf, (WEIRD,)),
        "aten.mul.Tensor, by booleans": (lambda x, y: x * (y > 0), (MATRIX, OTHER)),
        "aten.mul.Tensor, of booleans": (lambda x, y: (x > 0) * (y > 0), (MATRIX, OTHER)),
        "aten.full_like.default": (lambda x: torch.full_like(x, 2.5) * x, (MATRIX,)),
        **{f"aten.pow.Tensor_Scalar, {e}": (partial(torch.pow, exponent=e), (POSITIVE,)) for e in (2, 3, 0.5, -1, 1.7)},
        "aten.pow.Tensor_Scalar, of negatives": (lambda x: x**3, (X,)),
        "aten.pow.Tensor_Tensor": (torch.pow, (POSITIVE, X)),
        "aten.pow.Scalar": (lambda x: 2.5**x, (X,)),
        "aten.maximum.default": (torch.maximum, (MATRIX, OTHER)),
        "aten.minimum.default": (torch.minimum, (MATRIX, OTHER)),
        "aten.maximum.default, integers": (torch.maximum, (NUMBERS, NUMBERS_2)),
        "aten.minimum.default, integers": (torch.minimum, (NUMBERS, NUMBERS_2)),
        "aten.clamp.default": (lambda x: x.clamp(-0.5, 1.0), (X,)),
        "aten.clamp.default, below": (lambda x: x.clamp(min=0.1), (X,)),
        "aten.clamp.default, above": (lambda x: torch.clamp_max(x, 0.1), (X,)),
        "aten.clamp.default, an integer beside": (lambda x: x.clamp(-1, 0.5), (X,)),
        "aten.clamp.default, integers": (lambda x: x.clamp(-3, 3), (NUMBERS,)),
        "aten.clamp.Tensor": (lambda x, y: x.clamp(y - 1, y + 1), (MATRIX, OTHER)),
        "aten.where.self": (lambda x, y: torch.where(x > 0, x, y), (MATRIX, OTHER)),
        "aten.where.self, a mask of volumes": (
            lambda x: x.masked_fill(torch.arange(3)[:, None] > 1, 2.0) + 1, (VOLUMES,),
        ),
        "aten.where.self, numbers": (lambda x: torch.where(x > 0, 1.0, x), (MATRIX,)),
        "aten.where.self, integers": (lambda x, y: torch.where(x > 0, x, y), (NUMBERS, NUMBERS_2)),
        "aten.where.self, booleans": (lambda x, y: torch.where(x > 0, y > 0, x > 1), (MATRIX, OTHER)),
        "aten.where.self, masked_fill": (lambda x, y: x.masked_fill(y > 0, -5.0), (MATRIX, OTHER)),
        "aten._to_copy.default, int32": (lambda x: (x * 10).int(), (MATRIX,)),
        "aten._to_copy.default, from int32": (lambda x: x.float() / 2, (NUMBERS,)),
        "aten._to_copy.default, from bool": (lambda x: (x > 0).float(), (MATRIX,)),
        "aten._to_copy.default, bool": (lambda x: (x * (x > 0)).bool(), (MATRIX,)),
        "aten._to_copy.default, bool from int32": (lambda x: x.bool(), (NUMBERS,)),
        "aten._to_copy.default, from uint8": (lambda x: x.float() / 2, (NUMBERS_2.byte(),)),
    },
    "booleans": {
        "aten.logical_not.default": (partial(_of_signs, torch.logical_not), (MATRIX,)),
        "aten.bitwise_not.default": (partial(_of_signs, torch.bitwise_not), (OTHER,)),
        **{
            f"aten.logical_{n}.default": (partial(_of_signs, getattr(torch, f"logical_{n}")), (MATRIX, OTHER))
            for n in _TRUTHS
        },
        **{
            f"aten.bitwise_{n}.Tensor": (partial(_of_signs, getattr(torch, f"bitwise_{n}")), (OTHER, MATRIX + 1))
            for n in _TRUTHS
        },
        "aten.eq.Tensor, booleans": (partial(_of_signs, torch.eq), (MATRIX, OTHER)),
        "aten.ne.Tensor, booleans": (partial(_of_signs, torch.ne), (MATRIX, OTHER)),
        "aten.logical_not.default, numbers": (torch.logical_not, (NUMBERS,)),
        **{
            f"aten.logical_{n}.default, numbers": (getattr(torch, f"logical_{n}"), (NUMBERS, STEPS[0]))
            for n in _TRUTHS
        },
        "aten.any.default": (partial(_of_signs, torch.any), (MATRIX - 1,)),
        "aten.any.dim": (partial(_of_signs, partial(torch.any, dim=-1)), (MATRIX - 1,)),
        "aten.any.dim, numbers": (lambda x: (x * (x > 0)).any(1, keepdim=True), (MATRIX,)),
        "aten.any.dims": (partial(_of_signs, partial(torch.any, dim=(0, 1), keepdim=True)), (MATRIX - 9,)),
        "aten.any.dim, all": (partial(_of_signs, partial(torch.all, dim=0)), (MATRIX + 1,)),
    },
    "activations": {
        "aten.leaky_relu.default": (lambda x: F.leaky_relu(x, 0.1), (X,)),
        "aten.elu.default": (F.elu, (X,)),
        "aten.elu.default, alpha": (lambda x: F.elu(x, 0.5), (X,)),
        "aten.elu.default, scaled within": (lambda x: torch.ops.aten.elu(x, 0.5, 1.0, 2.0), (X,)),
        "aten.elu.default, selu": (F.selu, (X,)),
        "aten.gelu.default": (F.gelu, (X,)),
        "aten.gelu.default, tanh": (lambda x: F.gelu(x, approximate="tanh"), (X,)),
        "aten.silu.default": (F.silu, (X,)),
        "aten.hardswish.default": (F.hardswish, (X,)),
        "aten.hardsigmoid.default": (F.hardsigmoid, (X,)),
        "aten.hardtanh.default": (lambda x: F.hardtanh(x, -0.5, 0.75), (X,)),
        "aten.hardtanh.default, relu6": (F.relu6, (X * 4,)),
        "aten.mish.default": (F.mish, (X * 4,)),
        "aten.softplus.default": (F.softplus, (X * 10,)),
        "aten.softplus.default, beta": (lambda x: F.softplus(x, 2.0, 30.0), (X,)),
        "aten.log_sigmoid.default": (F.logsigmoid, (X * 40,)),
        "aten.prelu.default": (Constant(F.prelu, weight(8)), (X,)),
        "aten.prelu.default, one": (Constant(F.prelu, weight(1)), (X,)),
        "aten.glu.default": (lambda x: F.glu(x, 1), (X,)),
        "aten._softmax.default": (lambda x: x.softmax(-1), (X,)),
        "aten._softmax.default, channels": (lambda x: x.softmax(1), (X * 10,)),
        "aten._log_softmax.default": (lambda x: x.log_softmax(1), (X * 4,)),
    },
    "reductions": {
        "aten.sum.dim_IntList": (lambda x: x.sum((1, 3)), (X,)),
        "aten.sum.dim_IntList, all": (lambda x: x.sum(), (MATRIX,)),
        "aten.mean.dim": (lambda x: x.mean((-1, -2), keepdim=True), (X,)),
        "aten.mean.default": (lambda x: x.mean(), (X + 1,)),
        "aten.amax.default": (lambda x: x.amax(1), (X,)),
        "aten.amax.default, all": (lambda x: x.amax(), (X,)),
        "aten.amin.default": (lambda x: x.amin(-1, keepdim=True), (X,)),
        "aten.amax.default, integers": (lambda x: x.amax((0, 1)), (NUMBERS,)),
        "aten.max.default, integers": (lambda x: x.max(), (NUMBERS,)),
        "aten.max.default": (lambda x: x.max(), (MATRIX,)),
        "aten.min.default": (lambda x: x.min(), (MATRIX,)),
        "aten.max.dim": (lambda x: x.max(1)[0], (MATRIX,)),
        "aten.min.dim": (lambda x: x.min(0, keepdim=True)[0], (MATRIX,)),
        "aten.prod.default": (lambda x: x.prod(), (UNIT[0, 0],)),
        "aten.prod.dim_int": (lambda x: x.prod(1), (MATRIX,)),
        "aten.var.correction": (lambda x: x.var((2, 3), correction=0, keepdim=True), (X,)),
        "aten.var.correction, one": (lambda x: torch.std(x, -1), (X,)),
        "aten.var.correction, all": (lambda x: x.var(), (MATRIX,)),
        "aten.var_mean.correction, all": (torch.var_mean, (MATRIX,)),
        "aten.var_mean.correction, a half": (lambda x: torch.var_mean(x, -1, correction=0.5), (MATRIX,)),
        "aten.max.dim, places": (lambda x: x.max(-1, keepdim=True), (MATRIX,)),
        "aten.min.dim, places": (lambda x: x.min(0), (MATRIX,)),
        "aten.argmax.default, all": (lambda x: x.argmax(), (MATRIX,)),
        "aten.argmax.default, all kept": (lambda x: x.argmax(None, keepdim=True), (MATRIX,)),
        "aten.argmax.default, integers": (lambda x: x.argmax(1), (NUMBERS,)),
        "aten.var_mean.correction": (lambda x: torch.var_mean(x, (2, 3), correction=0, keepdim=True), (X,)),
        **{
            f"aten.linalg_vector_norm.default, {p}": (lambda x, p=p: torch.linalg.vector_norm(x, p, -1), (MATRIX,))
            for p in (1, 2, float("inf"), -float("inf"))
        },
        "aten.linalg_vector_norm.default, all": (lambda x: torch.linalg.vector_norm(x, keepdim=True), (MATRIX,)),
        "aten.cumsum.default": (lambda x: x.cumsum(-1), (MATRIX,)),
        "aten.cumsum.default, first": (lambda x: x.cumsum(0), (BATCHED,)),
        "aten.argmax.default": (lambda x: x.argmax(-1), (MATRIX,)),
        "aten.argmax.default, ties": (lambda x: x.argmax(0, keepdim=True), (HALVES.view(2, 4).round(),)),
        "aten.argmin.default": (lambda x: x.argmin(0, keepdim=True), (MATRIX,)),
    },
    "convolutions": {
        f"{_CONVOLUTION}": (Constant(lambda x, w, b: F.conv2d(x, w, b, 2, 1), weight(4, 8, 3, 3), weight(4)), (X,)),
        f"{_CONVOLUTION}, depthwise": (
            Constant(lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 8), weight(8, 1, 3, 3)),
            (X,),
        ),
        f"{_CONVOLUTION}, groups": (Constant(lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 2), weight(8, 4, 3, 3)), (X,)),
        f"{_CONVOLUTION}, dilated": (Constant(lambda x, w: F.conv2d(x, w, None, 1, 2, 2), weight(4, 8, 3, 3)), (X,)),
        f"{_CONVOLUTION}, uneven": (
            Constant(lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 0)), weight(4, 8, 3, 1)),
            (X,),
        ),
        f"{_CONVOLUTION}, same": (Constant(lambda x, w: F.conv2d(x, w, None, 1, "same"), weight(4, 8, 4, 4)), (X,)),
        f"{_CONVOLUTION}, weight given": (F.conv2d, (X, weight(4, 8, 3, 3))),
        f"{_CONVOLUTION}, 1-D": (
            Constant(lambda x, w, b: F.conv1d(x, w, b, 1, 1), weight(4, 8, 3), weight(4)),
            (LINE,),
        ),
        f"{_CONVOLUTION}, 1-D dilated": (
            Constant(lambda x, w: F.conv1d(x, w, None, 2, 2, 2), weight(4, 8, 3)),
            (LINE,),
        ),
        f"{_CONVOLUTION}, 1-D depthwise": (
            Constant(lambda x, w: F.conv1d(x, w, None, 1, 1, 1, 8), weight(8, 1, 3)),
            (LINE,),
        ),
        f"{_CONVOLUTION}, 3-D": (
            Constant(lambda x, w, b: F.conv3d(x, w, b, 1, 1), weight(4, 4, 3, 3, 3), weight(4)),
            (VOLUME,),
        ),
        f"{_CONVOLUTION}, 3-D strided": (
            Constant(lambda x, w: F.conv3d(x, w, None, 2, 1), weight(4, 4, 3, 3, 3)),
            (VOLUME,),
        ),
        f"{_CONVOLUTION}, 3-D groups": (
            Constant(lambda x, w: F.conv3d(x, w, None, 1, 1, 1, 4), weight(4, 1, 3, 3, 3)),
            (VOLUME,),
        ),
        f"{_CONVOLUTION}, one channel in long steps": (
            Constant(lambda x, w: F.conv2d(x[:, :1], w, None, 3), weight(1, 1, 2, 2)),
            (X,),
        ),
        f"{_CONVOLUTION}, padding beyond the window": (
            Constant(lambda x, w: F.conv2d(x, w, None, 1, (1, 0)), weight(4, 8, 1, 3)),
            (X,),
        ),
        f"{_CONVOLUTION}, transposed": (
            Constant(lambda x, w, b: F.conv_transpose2d(x, w, b, 2), weight(8, 4, 2, 2), weight(4)),
            (X,),
        ),
        f"{_CONVOLUTION}, transposed output_padding": (
            Constant(lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1), weight(8, 4, 3, 3)),
            (X,),
        ),
        f"{_CONVOLUTION}, transposed groups": (
            Constant(lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 0, 2), weight(8, 4, 3, 3)),
            (X,),
        ),
        f"{_CONVOLUTION}, transposed groups of one result": (
            Constant(lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 0, 2), weight(8, 1, 3, 3)),
            (X,),
        ),
        f"{_CONVOLUTION}, transposed depthwise": (
            Constant(lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 0, 8), weight(8, 1, 4, 4)),
            (X,),
        ),
        f"{_CONVOLUTION}, transposed dilated": (
            Constant(lambda x, w: F.conv_transpose2d(x, w, None, 1, 1, 0, 1, 2), weight(8, 4, 3, 3)),
            (X,),
        ),
        f"{_CONVOLUTION}, transposed 1-D": (
            Constant(lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1), weight(8, 4, 3), weight(4)),
            (LINE,),
        ),
        f"{_CONVOLUTION}, transposed 3-D": (
            Constant(lambda x, w: F.conv_transpose3d(x, w, None, 2, 1), weight(4, 2, 3, 3, 3)),
            (VOLUME,),
        ),
    },
    "products": {
        "aten.linear.default": (Constant(F.linear, weight(4, 7), weight(4)), (BATCHED,)),
        "aten.linear.default, 2-D": (Constant(F.linear, weight(4, 7), weight(4)), (MATRIX,)),
        "aten.linear.default, no bias": (Constant(F.linear, weight(4, 7)), (X[..., :1].repeat(1, 1, 1, 7),)),
        "aten.addmm.default": (Constant(lambda x, b, w: torch.addmm(b, x, w), weight(4), weight(7, 4)), (MATRIX,)),
        "aten.addmm.default, factors": (
            lambda x, y: torch.addmm(x[:, :5], x, y.t(), beta=0.5, alpha=2.0),
            (MATRIX, OTHER),
        ),
        "aten.mm.default": (lambda x, y: torch.mm(x, y.t()), (MATRIX, OTHER)),
        "aten.bmm.default": (lambda x: torch.bmm(x, x.transpose(1, 2)), (BATCHED,)),
        "aten.bmm.default, baddbmm": (
            lambda x: torch.baddbmm(x[:, :, :5], x, x.transpose(1, 2), beta=0.5, alpha=2),
            (BATCHED,),
        ),
        "aten.bmm.default, einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (BATCHED, BATCHED + 1)),
        "aten.matmul.default": (lambda x: x @ x.transpose(2, 3), (X,)),
        "aten.matmul.default, by a vector": (lambda x, y: x @ y[0], (BATCHED, OTHER)),
        "aten.matmul.default, transposed, by a vector": (lambda x, y: x.mT @ y[:, 0], (BATCHED, OTHER)),
        "aten.matmul.default, a vector": (lambda x, y: y[:, 0] @ x, (BATCHED, OTHER)),
        "aten.matmul.default, two vectors": (lambda x, y: x[0] @ y[0], (MATRIX, OTHER)),
        "aten.scaled_dot_product_attention.default, rows that see nothing": (
            lambda x, m: F.scaled_dot_product_attention(x, x + 1, x - 1, attn_mask=m > 2),
            (X, torch.arange(6.0)[:, None].expand(6, 6)),
        ),
        "aten.scaled_dot_product_attention.default, rows of infinity": (
            lambda x, m: F.scaled_dot_product_attention(x, x + 1, x - 1, attn_mask=m),
            (X, torch.zeros(2, 1, 6, 6).masked_fill(torch.arange(6)[:, None] > 3, -torch.inf)),
        ),
        "aten.scaled_dot_product_attention.default": (
            lambda x: F.scaled_dot_product_attention(x, x + 1, x - 1, attn_mask=torch.ones(6, 6).tril().bool()),
            (X,),
        ),
    },
    "pools": {
        "aten.avg_pool2d.default": (lambda x: F.avg_pool2d(x, 3, 2, 1), (X,)),
        "aten.avg_pool2d.default, pads not counted": (
            lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            (X,),
        ),
        "aten.avg_pool2d.default, ceil_mode": (lambda x: F.avg_pool2d(x, 2, 2, 0, ceil_mode=True), (X,)),
        "aten.avg_pool2d.default, ceil_mode reaching out": (lambda x: F.avg_pool2d(x, 3, 2, 0, ceil_mode=True), (X,)),
        "aten.avg_pool2d.default, one channel in long steps": (lambda x: F.avg_pool2d(x[:, :1], (1, 3)), (X,)),
        "aten.avg_pool2d.default, 1-D": (lambda x: F.avg_pool1d(x, 3, 2, 1), (LINE,)),
        "aten.avg_pool3d.default": (lambda x: F.avg_pool3d(x, 3, 2, 1), (VOLUME,)),
        "aten.max_pool2d_with_indices.default": (lambda x: F.max_pool2d(x - 9, 3, 2, 1), (X,)),
        "aten.max_pool2d_with_indices.default, ceil_mode": (lambda x: F.max_pool2d(x, 3, 1, ceil_mode=True), (X,)),
        "aten.max_pool2d_with_indices.default, ceil_mode reaching out": (
            lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
            (X,),
        ),
        "aten.max_pool2d_with_indices.default, dilated": (lambda x: F.max_pool2d(x, 2, 1, 0, 2), (X,)),
        "aten.max_pool2d_with_indices.default, skipping": (lambda x: F.max_pool2d(x, (3, 1), 2), (X,)),
        "aten.max_pool2d_with_indices.default, 1-D": (lambda x: F.max_pool1d(x, 3, 2, 1), (LINE,)),
        "aten.max_pool3d_with_indices.default": (lambda x: F.max_pool3d(x, 2), (VOLUME,)),
        "aten.avg_pool2d.default, divisor": (lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), (X,)),
        "aten.avg_pool2d.default, ceil_mode pads not counted": (
            lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
            (X[..., :5],),
        ),
        "aten.avg_pool2d.default, ceil_mode pads counted": (
            lambda x: F.avg_pool2d(x, 3, 2, 1, True),
            (X[..., :6, :4],),
        ),
        "aten.avg_pool2d.default, ceil_mode 1-D": (lambda x: F.avg_pool1d(x, 3, 2, 1, True), (LINE[..., :4],)),
        "aten.avg_pool2d.default, ceil_mode beyond": (lambda x: F.avg_pool2d(x, 2, 3, 1, True), (X[..., :5],)),
        "aten.max_pool2d_with_indices.default, ceil_mode padded": (
            lambda x: F.max_pool2d(x - 9, 3, 2, 1, ceil_mode=True),
            (X[..., :5],),
        ),
        "aten.adaptive_max_pool2d.default": (lambda x: F.adaptive_max_pool2d(x, 1), (X,)),
        "aten.adaptive_max_pool2d.default, 3": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (X,)),
        "aten.adaptive_max_pool2d.default, 1-D": (lambda x: F.adaptive_max_pool1d(x, 4), (LINE,)),
        "aten.adaptive_max_pool3d.default": (lambda x: F.adaptive_max_pool3d(x, 2), (VOLUME,)),
        "aten.adaptive_avg_pool2d.default, uneven": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), (X,)),
        "aten.adaptive_avg_pool3d.default, uneven": (lambda x: F.adaptive_avg_pool3d(x, (4, 3, 5)), (VOLUME,)),
        "aten.adaptive_avg_pool2d.default": (lambda x: F.adaptive_avg_pool2d(x, 1), (X,)),
        "aten.adaptive_avg_pool2d.default, one channel in long steps": (
            lambda x: F.adaptive_avg_pool2d(x[:, :1, :6, :6], 2),
            (X,),
        ),
        "aten.adaptive_avg_pool2d.default, 3": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (X,)),
        "aten.adaptive_avg_pool1d.default": (lambda x: F.adaptive_avg_pool1d(x, 4), (LINE,)),
        "aten.adaptive_avg_pool3d.default": (lambda x: F.adaptive_avg_pool3d(x, 1), (VOLUME,)),
        "aten.adaptive_avg_pool3d.default, 2": (lambda x: F.adaptive_avg_pool3d(x, 2), (VOLUME,)),
    },
    "norms": {
        "aten.layer_norm.default": (
            Constant(lambda x, w, b: F.layer_norm(x, (7,), w, b), weight(7), weight(7)),
            (BATCHED,),
        ),
        "aten.layer_norm.default, plain": (lambda x: F.layer_norm(x, (7,)), (BATCHED,)),
        "aten.layer_norm.default, two dimensions": (
            Constant(lambda x, w, b: F.layer_norm(x, (6, 6), w, b), weight(6, 6), weight(6, 6)),
            (X,),
        ),
        "aten.native_group_norm.default": (
            Constant(lambda x, w, b: F.group_norm(x, 4, w, b), weight(8), weight(8)),
            (X,),
        ),
        "aten.native_group_norm.default, plain": (lambda x: F.group_norm(x, 2), (X,)),
        "aten.native_group_norm.default, 1-D": (
            Constant(lambda x, w, b: F.group_norm(x, 2, w, b), weight(8), weight(8)),
            (LINE,),
        ),
        "aten._native_batch_norm_legit.no_stats": (nn.BatchNorm2d(8, track_running_stats=False).eval(), (X,)),
        "aten.instance_norm.default": (F.instance_norm, (X,)),
        "aten.instance_norm.default, weights": (
            Constant(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), weight(8), weight(8)),
            (X,),
        ),
        "aten.mean.dim, rms_norm": (Constant(lambda x, w: F.rms_norm(x, (7,), w, 1e-6), weight(7)), (BATCHED,)),
        "aten._native_batch_norm_legit_no_training.default": (nn.BatchNorm2d(8).requires_grad_(False).eval(), (X,)),
        "aten._native_batch_norm_legit_no_training.default, 1-D": (
            nn.BatchNorm1d(8).requires_grad_(False).eval(),
            (LINE,),
        ),
        "aten._native_batch_norm_legit_no_training.default, rows": (
            nn.BatchNorm1d(7).requires_grad_(False).eval(),
            (MATRIX,),
        ),
        "aten._native_batch_norm_legit_no_training.default, 3-D": (
            nn.BatchNorm3d(4).requires_grad_(False).eval(),
            (VOLUME,),
        ),
    },
    "resizing": {
        **_RESIZED,
        **_INTERPOLATED,
        **_SAMPLED,
        "aten.pixel_shuffle.default": (lambda x: F.pixel_shuffle(x, 2), (X,)),
        "aten.pixel_unshuffle.default": (lambda x: F.pixel_unshuffle(x, 2), (X,)),
    },
    "moving": {
        "aten.view.default": (lambda x: x.view(2, 8, 36) * 2, (X,)),
        "aten.expand.default": (lambda x: x[:, None].expand(5, 3, 7) * 2, (MATRIX,)),
        "aten.permute.default": (lambda x: x.permute(0, 2, 3, 1) * 2, (X,)),
        "aten.squeeze.dims": (lambda x: x.sum(1, keepdim=True).squeeze(1) * 2, (MATRIX,)),
        "aten.unsqueeze.default": (lambda x, y: x.unsqueeze(1) * y, (MATRIX, OTHER)),
        "aten.cat.default": (lambda x, y: torch.cat((x, y), 1) * 2, (MATRIX, OTHER)),
        "aten.cat.default, stack": (lambda x, y: torch.stack((x, y), -1) * 2, (MATRIX, OTHER)),
        "aten.slice.Tensor": (lambda x: x[:, 1:5] * 2, (X,)),
        "aten.slice.Tensor, step": (lambda x: x[:, 1::3] * 2, (X,)),
        "aten.slice.Tensor, from the end": (lambda x: x[:, -3:-1] * 2, (X,)),
        "aten.select.int": (lambda x: x[:, 2] * 2, (X,)),
        "aten.select.int, last": (lambda x: x[:, -1] * 2, (X,)),
        "aten.slice.Tensor, unbind": (lambda x: sum(x.unbind(1)), (BATCHED,)),
        "aten.split_with_sizes.default": (lambda x: [y * 2 for y in torch.split(x, (2, 6), 1)], (X,)),
        "aten.split_with_sizes.default, chunk": (lambda x: [y * 2 for y in x.chunk(3, -1)], (BATCHED,)),
        "aten.repeat.default": (lambda x: x.repeat(2, 1, 3) * 2, (MATRIX,)),
        "aten.flip.default": (lambda x: x.flip(1, -1) * 2, (BATCHED,)),
        "aten.constant_pad_nd.default, cut": (lambda x: F.pad(x, (-1, 2, 1, -2), value=1.5) * 2, (X,)),
        "aten.constant_pad_nd.default, integers": (lambda x: F.pad(x, (1, 2), value=3) + 0, (NUMBERS,)),
        "aten.constant_pad_nd.default": (lambda x: F.pad(x, (1, 2, 0, 1)) * 2, (X,)),
        "aten.constant_pad_nd.default, of 5 dimensions": (lambda x: F.pad(x, (0, 1)) * 2, (VOLUMES,)),
        "aten.constant_pad_nd.default, infinite": (lambda x: F.pad(x, (1, 2), value=-torch.inf) + 1, (X,)),
        "aten.constant_pad_nd.default, value": (lambda x: F.pad(x, (1, 2), value=2.5) * 2, (X,)),
        **{
            f"aten.{name}_pad{n}d.default": (partial(F.pad, pad=(1, 2) * n, mode=mode), (x,))
            for name, mode in (("reflection", "reflect"), ("replication", "replicate"))
            for n, x in ((1, LINE), (2, X), (3, VOLUME))
        },
        "aten.reflection_pad2d.default, cut": (lambda x: F.pad(x, (-1, 2, 1, 0), mode="reflect"), (X,)),
        "aten.replication_pad2d.default, cut": (lambda x: F.pad(x, (3, -1, 0, 2), mode="replicate"), (X,)),
        "aten._pad_circular.default": (partial(F.pad, pad=(1, 2, 0, 1), mode="circular"), (X,)),
    },
    "indexing": {
        "aten.embedding.default": (Constant(lambda i, w: F.embedding(i, w) * 2, weight(3, 7)), (INDEX,)),
        "aten.embedding.default, padding_idx": (
            Constant(lambda i, w: F.embedding(i, w, 1) * 2, weight(3, 7)),
            (INDEX.int(),),
        ),
        "aten.index.Tensor": (Constant(lambda x, i: x[i] * 2, INDEX), (MATRIX,)),
        "aten.index.Tensor, second": (Constant(lambda x, i: x[:, i] * 2, INDEX), (MATRIX,)),
        "aten.index.Tensor, of 2 dimensions": (Constant(lambda x, i: x[i] * 2, INDEX.view(2, 2)), (MATRIX,)),
        "aten.index.Tensor, given": (lambda x, i: x[:, i] * 2, (X, INDEX)),
        "aten.index.Tensor, negative": (Constant(lambda x, i: x[:, i] * 2, INDEX - 2), (MATRIX,)),
        "aten.index.Tensor, negative given": (lambda x, i: x[:, i] * 2, (X, INDEX - 2)),
        "aten.index_select.default": (Constant(lambda x, i: x.index_select(1, i) * 2, INDEX), (MATRIX,)),
        "aten.index.Tensor, two": (lambda x, i: x[:, i, i] * 2, (X, INDEX)),
        "aten.index.Tensor, two from the end": (lambda x, i: x[:, i - 3, i] * 2, (X, INDEX)),
        "aten.index.Tensor, two apart": (Constant(lambda x, i: x[:, i, :, i - 3] * 2, INDEX), (X,)),
        "aten.index.Tensor, of images": (
            Constant(lambda x, i: x[:, :, i[:5, None], i] * 2, torch.arange(9) % 6), (X,),
        ),
        "aten.index.Tensor, broadcast": (Constant(lambda x, i: x[i[:, None], i] * 2, INDEX), (MATRIX,)),
        "aten.as_strided.default": (lambda x: x.as_strided((3, 3), (7, 2), 1) * 2, (MATRIX,)),
        "aten.as_strided.default, transposed": (
            lambda x: x.mT.contiguous().as_strided((3, 3), (7, 2), 1) * 2, (MATRIX,),
        ),
        "aten.unfold.default": (lambda x: x.unfold(0, 3, 2) * 2, (MATRIX,)),
        "aten.gather.default": (lambda x, i: x.gather(1, i) * 2, (MATRIX, INDEX.repeat(5, 1))),
    },
    "writing": {
        "aten.scatter.src": (lambda x, y, i: x.scatter(-1, i, y), (MATRIX, OTHER, INDEX[:3].expand(5, 3).clone())),
        "aten.scatter.src, less": (lambda x, y, i: x.scatter(0, i, y), (MATRIX, OTHER, INDEX[None, :3])),
        "aten.scatter.value": (lambda x, i: x.scatter(1, i, 2.5), (MATRIX, PLACES)),
        "aten.scatter_add.default": (lambda x, y, i: x.scatter_add(1, i, y), (MATRIX, OTHER, PLACES)),
        "aten.scatter_add.default, first": (lambda x, y, i: x.scatter_add(-2, i, y), (MATRIX, OTHER, PLACES)),
        **{
            f"aten.scatter_reduce.two, {how}": (
                lambda x, y, i, how=how: x.scatter_reduce(1, i, y, how), (MATRIX, OTHER, PLACES),
            )
            for how in ("sum", "prod")
        },
        "aten.index_put.default": (lambda x, y, i: x.index_put((i,), y[:3]), (MATRIX, OTHER, INDEX[:3])),
        "aten.index_put.default, sums": (
            lambda x, y, i: x.index_put((i,), y[:4], accumulate=True), (MATRIX, OTHER, INDEX),
        ),
        "aten.index_put.default, sums in order": (
            Constant(lambda x, y, i: x.index_put((i,), y, accumulate=True), torch.arange(5)), (MATRIX, OTHER),
        ),
        "aten.index_put.default, numbers in order": (
            Constant(lambda x, i: x.index_put((i,), x.new_full((5,), 2.5), accumulate=True), torch.arange(5)),
            (MATRIX[:, 0],),
        ),
        "aten.scatter_add.default, in order": (
            Constant(lambda x, y, i: x.scatter_add(0, i, y), torch.arange(5)), (MATRIX[:, 0], OTHER[:, 0]),
        ),
        "aten.index_put.default, negative": (
            Constant(lambda x, y, i: x.index_put((i,), y[:3]), INDEX[:3] - 5), (MATRIX, OTHER),
        ),
        "aten.index_put.default, second": (
            partial(_put, lambda i: (slice(None), i)),
            (MATRIX, OTHER[:, :3], INDEX[:3]),
        ),
        "aten.index_put.default, two apart": (
            partial(_put, lambda i: (slice(None), i, slice(None), i)),
            (X, X[0, 0, :3, :2].reshape(3, 2, 1), INDEX[:3]),
        ),
        "aten.index_put.default, a mask": (lambda x, y: x.index_put((y > 0,), x.new_full((), 2.5)), (MATRIX, OTHER)),
        "aten.index_put.default, a mask of rows": (
            lambda x, y: x.index_put((y[:, 0] > 0,), x.new_full((1,), 2.5)), (MATRIX, OTHER),
        ),
        "aten.slice_scatter.default": (lambda x, y: x.slice_scatter(y[:, :2], 1, 2, 4), (MATRIX, OTHER)),
        "aten.slice_scatter.default, step": (lambda x, y: x.slice_scatter(y[:2], 0, -4, 5, 2), (MATRIX, OTHER)),
        "aten.select_scatter.default": (lambda x, y: x.select_scatter(y[:, 0], -1, -2), (MATRIX, OTHER)),
    },
    "sorting": {
        "aten.topk.default": (lambda x: x.topk(3), (MATRIX,)),
        "aten.topk.default, smallest": (lambda x: x.topk(2, 0, largest=False), (MATRIX,)),
        "aten.sort.default": (lambda x: x.sort(), (MATRIX,)),
        "aten.sort.default, down": (lambda x: x.sort(0, descending=True), (MATRIX,)),
        "aten.sort.stable": (lambda x: torch.sort(x.round(), stable=True), (MATRIX,)),
        "aten.sort.stable, down": (lambda x: torch.sort(x.round(), stable=True, descending=True, dim=0), (MATRIX,)),
    },
    "quantization": {
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
    },
}  # fmt: skip
CASES: dict[str, Case] = {name: case for family in FAMILIES.values() for name, case in family.items()}
IN_ORDER = [case for case in CASES if case.endswith("in order")]


class All(nn.Module):
    """Cases, one after the other; the module of each has its number as name."""

    def __init__(self, cases: dict[str, Case]) -> None:
        super().__init__()
        self.cases = cases
        for number, (function, _) in enumerate(cases.values()):
            self.add_module(f"case{number}", Function(function))

    def forward(self, *inputs: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        given = iter(inputs)
        results = []
        for number, (_, example) in enumerate(self.cases.values()):
            made = getattr(self, f"case{number}")(*(next(given) for _ in example))
            results.append(tuple(made) if isinstance(made, tuple | list) else (made,))
        return results
