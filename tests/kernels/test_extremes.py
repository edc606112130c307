"""The ends of the integers, unsigned integers, NaN and infinity, against torch."""

import math

import pytest
import torch

from tests.support.kernels import check, sample

aten = torch.ops.aten
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
QUOTIENTS = [
    aten.remainder.Tensor, aten.fmod.Tensor, aten.div.Tensor, aten.mul.Tensor,
    aten.add.Tensor, aten.sub.Tensor, aten.gcd.default, aten.lcm.default,
]  # fmt: skip


def ends(dtype):
    limits = torch.iinfo(dtype)
    return torch.tensor([limits.min, limits.min, limits.max, -7, 7, -7, 7, 0], dtype=dtype)


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
@pytest.mark.parametrize("op", QUOTIENTS, ids=str)
def test_signs_and_overflow(op, dtype):
    check(op, ends(dtype), torch.tensor([1, 2, -1, 2, -2, 3, 3, 5], dtype=dtype))


@pytest.mark.parametrize("dtype", SIGNED[:2], ids=str)
@pytest.mark.parametrize("op", QUOTIENTS[:3], ids=str)
def test_the_least_integer_by_minus_one(op, dtype):
    """Test narrow integers only: for wider ones the processor raises an error, also in torch."""
    check(op, ends(dtype)[:2], torch.tensor([-1, -1], dtype=dtype))


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_integers(dtype):
    x = ends(dtype)
    bits = torch.iinfo(dtype).bits
    shifts = torch.tensor([0, 1, bits - 1, bits, bits + 5, -1, 3, 2], dtype=dtype)
    check(aten.bitwise_left_shift.Tensor, x, shifts)
    check(aten.bitwise_right_shift.Tensor, x, shifts)
    check(aten.pow.Tensor_Tensor, x, torch.tensor([0, 1, 2, 3, 4, -1, -2, -3], dtype=dtype))
    check(aten.pow.Tensor_Scalar, x, 3)
    for rounding in ("floor", "trunc", None):
        check(aten.div.Tensor_mode, x, torch.tensor([1, 2, -1, 2, -2, 3, 3, 5], dtype=dtype), rounding_mode=rounding)
    for op in (aten.abs.default, aten.neg.default, aten.sign.default):
        check(op, x)
    check(aten.sum.dim_IntList, x, [0], dtype=dtype)
    check(aten.cumsum.default, x, 0, dtype=dtype)
    check(aten._to_copy.default, torch.tensor([1.9, -1.9, 0.5, 3.7]), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_unsigned(dtype):
    x, y = torch.tensor([1, 2, 5, 7], dtype=dtype), torch.tensor([3, 3, 2, 7], dtype=dtype)
    for op in (aten.mul.Tensor, aten.div.Tensor, aten.bitwise_and.Tensor, aten.eq.Tensor, aten.ne.Tensor):
        check(op, x, y)
    for op in (aten.prod.default, aten.any.default, aten.sort.default, aten.clone.default):
        check(op, x)
    check(aten.cumsum.default, x, 0)
    check(aten.where.self, torch.tensor([True, False, True, False]), x, y)


NOT_NUMBERS = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e30, -1e30])
OTHERS = torch.tensor([1.0, math.nan, 2.0, 0.0, -0.0, -2.0, 2.0, 0.0, math.inf, -math.inf, math.nan, 3.0])
BINARY = [
    aten.remainder.Tensor, aten.fmod.Tensor, aten.maximum.default, aten.fmax.default,
    aten.minimum.default, aten.fmin.default, aten.div.Tensor, aten.pow.Tensor_Tensor, aten.atan2.default,
    aten.copysign.Tensor, aten.eq.Tensor, aten.le.Tensor, aten.logaddexp.default, aten.xlogy.Tensor, aten.hypot.default,
]  # fmt: skip
UNARY = [
    aten.round.default, aten.sign.default, aten.relu.default, aten.hardtanh.default, aten.silu.default,
    aten.sigmoid.default, aten.tanh.default, aten.exp.default, aten.trunc.default, aten.softplus.default,
    aten.elu.default, aten.leaky_relu.default, aten.hardswish.default, aten.mish.default,
    aten.sqrt.default, aten.rsqrt.default, aten.log.default, aten.erf.default, aten.amax.default, aten.argmax.default,
    aten.median.default, aten.nanmedian.default, aten.erfinv.default,
]  # fmt: skip
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", BINARY, ids=str)
def test_binary_of_not_numbers(op, dtype):
    check(op, NOT_NUMBERS.to(dtype), OTHERS.to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", UNARY, ids=str)
def test_unary_of_not_numbers(op, dtype):
    check(op, NOT_NUMBERS.to(dtype))


def test_erfinv():
    points = [0.0, 1e-12, 0.3, -0.3, 0.5, 0.51, 0.999, -0.9999999, 1.0, -1.0, 1.5, math.nan]
    x = torch.tensor(points, dtype=torch.float64)
    check(aten.erfinv.default, x, rtol=1e-9)
    check(aten.erfinv.default, torch.linspace(-1, 1, 101), rtol=1e-5)


def test_erfcx():
    x = torch.tensor([0.0, -0.0, 1e-300, 0.5, 5.0, 26.5, 1e3, -0.5, -7.0, -26.0, -30.0, math.nan, math.inf, -math.inf])
    check(aten.special_erfcx.default, x.double())
    check(aten.special_erfcx.default, sample(4, 5, dtype=torch.int32), rtol=1e-4, atol=1e-6)
