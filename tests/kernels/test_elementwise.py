"""Elementwise kernels against torch eager: values, dtypes, promotion, broadcasting, special values."""

# ruff: noqa: SIM905 - lists of names read better as words
import itertools
import re

import numpy as np
import pytest
import torch

from delegate.kernels.activation import native_dropout
from delegate.testing import assert_same
from tests.support.kernels import check, sample

A = torch.ops.aten
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
U8, I8, I16, I32, I64, BOOL = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool
FLOATS = (F32, F64, F16, BF16)
INTS = (U8, I8, I16, I32, I64)
SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 88.0, -104.0, torch.inf, -torch.inf, torch.nan]
)

UNARY_FLOAT = (
    "acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 log log10 log1p log2 reciprocal rsqrt sin sinh sqrt tan "
    "tanh erf erfc sigmoid"
).split()
UNARY_SAME = "abs neg ceil floor trunc round sign relu hardtanh".split()
UNARY_BOOL = "isnan isinf isfinite logical_not signbit".split()
ACTIVATIONS = (
    "silu gelu hardsigmoid hardswish softplus mish log_sigmoid elu selu celu leaky_relu hardshrink softshrink"
).split()


def shaped(dtype):
    """Return tensors with the shapes and strides that every elementwise kernel must support."""
    yield sample(3, 4, dtype=dtype)
    yield sample(dtype=dtype)
    yield sample(0, 3, dtype=dtype)
    yield sample(4, 6, 5, dtype=dtype).transpose(0, 2)[:, ::2]
    yield sample(1, 5, dtype=dtype).expand(3, 5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY_FLOAT + UNARY_SAME + UNARY_BOOL + ACTIVATIONS)
def test_unary_floats(name, dtype):
    op = getattr(A, name).default
    for x in shaped(dtype):
        check(op, x)
    x = SPECIAL.clone()
    if name in ("cos", "sin", "tan", "cosh", "sinh", "exp", "expm1", "exp2") and dtype is F16:
        x = x[x.abs() != 88]
    if name == "gelu":  # torch gives infinity or NaN for infinity, which of them depends on how it was built
        x = x[x != torch.inf]
    check(op, x.to(dtype))


@pytest.mark.parametrize("dtype", [*INTS, BOOL], ids=str)
@pytest.mark.parametrize("name", UNARY_FLOAT + UNARY_SAME + UNARY_BOOL)
def test_unary_integers(name, dtype):
    op = getattr(A, name).default
    try:
        op(sample(2, dtype=dtype))
    except RuntimeError as refused:
        assert re.search("not implemented|ool|unsigned", str(refused))  # noqa: PT017 - torch has no such operator
        return
    for x in shaped(dtype):
        check(op, x)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize(
    "name", "abs neg exp sqrt reciprocal rsqrt sin cos tanh log isnan logical_not sigmoid silu".split()
)
def test_unary_complex(name, dtype):
    check(getattr(A, name).default, sample(3, 4, dtype=dtype, scale=1))


@pytest.mark.parametrize("name", ["silu", "gelu", "sigmoid", "elu", "erf", "softplus"])
def test_large_arrays_are_worked_on_in_blocks(name):
    op = getattr(A, name).default
    check(op, sample(3, 17, 1001))
    check(op, sample(17, 3, 1001).transpose(0, 1))


@pytest.mark.parametrize("slope", [0.0, -0.0, 1e-3, 1.0, 1.5, -0.3, -2.0, torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_slopes(slope, dtype):
    x = torch.cat([SPECIAL.to(dtype), sample(10, dtype=dtype)]).reshape(2, 6, 2)
    check(A.leaky_relu.default, x, slope)
    check(A.prelu.default, x, torch.tensor([slope], dtype=dtype))
    check(A.prelu.default, x, torch.tensor([slope, 0, 0.25, -1, torch.inf, slope], dtype=dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_thresholds(dtype):
    x = sample(3, 7, 5000, dtype=dtype)
    for tensor in (x, x.transpose(0, 1), x[:, ::2, ::3]):
        check(A.sign.default, tensor)
        if dtype.is_floating_point:
            check(A.hardshrink.default, torch.where(tensor > 1, torch.nan, tensor), 0.3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_with_parameters(dtype):
    x = sample(2, 6, 5, dtype=dtype)
    check(A.gelu.default, x, approximate="tanh")
    check(A.hardtanh.default, x, -0.5, 2.0)
    check(A.softplus.default, x, 2.0, 1.0)
    check(A.elu.default, x, 0.7, 1.3, 0.9)
    check(A.leaky_relu.default, x, 0.2)
    check(A.hardshrink.default, x, 1.0)
    check(A.softshrink.default, x, 1.0)
    check(A.glu.default, x, 1)
    check(A.prelu.default, x, sample(6, dtype=dtype))
    check(A._prelu_kernel.default, x, sample(1, 6, 1, dtype=dtype))
    check(A.round.decimals, x, decimals=0)
    check(A.native_dropout.default, x, 0.5, False)


@pytest.mark.parametrize("decimals", [-1, 2])
def test_round_decimals(decimals):
    check(A.round.decimals, sample(20, scale=40), decimals=decimals)
    check(A.round.decimals, sample(20, dtype=F64, scale=40), decimals=decimals)


def test_dropout_in_training_keeps_and_scales():
    x = torch.ones(10000)
    result, mask = np.empty(10000, np.float32), np.empty(10000, bool)
    native_dropout(x.numpy(), 0.25, True, out=(result, mask))
    assert 0.70 < mask.mean() < 0.80
    assert_same(result, (mask / 0.75).astype(np.float32))


MIXES = list(itertools.product((F32, F64, F16, BF16, U8, I8, I32, I64, BOOL), repeat=2))


@pytest.mark.parametrize(("a", "b"), MIXES, ids=str)
def test_promotion(a, b):
    for op in [A.mul.Tensor, A.add.Tensor, A.eq.Tensor, A.lt.Tensor, A.maximum.default, A.where.self]:
        condition = (sample(3, 1, dtype=BOOL),) if op is A.where.self else ()
        check(op, *condition, sample(3, 4, dtype=a), sample(4, dtype=b, seed=1))
        check(op, *condition, sample(3, 4, dtype=a), sample(dtype=b, seed=1))
        check(op, *condition, sample(dtype=a), sample(0, 4, dtype=b, seed=1)) if not condition else None
    for op in [A.div.Tensor, A.atan2.default, A.logical_and.default]:
        check(
            op,
            sample(3, 4, dtype=a),
            sample(4, dtype=b, seed=1).abs() + 1 if b is not BOOL else sample(4, dtype=b) | True,
        )


@pytest.mark.parametrize("scalar", [2, -1, 0.5, True])
@pytest.mark.parametrize("dtype", [F32, F16, BF16, U8, I32, I64, BOOL], ids=str)
def test_python_scalars(dtype, scalar):
    x = sample(3, 4, dtype=dtype)
    for op in [A.mul.Tensor, A.mul.Scalar, A.add.Tensor, A.add.Scalar, A.div.Tensor, A.gt.Scalar, A.eq.Scalar]:
        check(op, x, scalar)
    if BOOL not in (dtype, torch.tensor(scalar).dtype):
        for op in [A.sub.Scalar, A.sub.Tensor]:
            check(op, x, scalar)
        check(A.clamp.default, x, None, scalar)
        check(A.remainder.Scalar, x, scalar or 1)


@pytest.mark.parametrize("dtype", [F32, F64, F16, I32, I64, U8, torch.complex64], ids=str)
def test_alpha(dtype):
    a, b = sample(3, 1, dtype=dtype), sample(4, dtype=dtype, seed=1)
    check(A.add.Tensor, a, b, alpha=3)
    check(A.sub.Tensor, a, b, alpha=2)
    check(A.add.Scalar, a, 5, 3)
    check(A.addcmul.default, sample(3, 4, dtype=dtype), a, b, value=2)


DIVIDENDS = [-7, -6, -1, 0, 1, 6, 7, 127]


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, *INTS], ids=str)
@pytest.mark.parametrize("divisor", [-3, -1, 1, 2, 3])
def test_integer_and_floor_division(dtype, divisor):
    if dtype is U8 and divisor < 0:
        divisor = 5
    a = torch.tensor(DIVIDENDS).to(dtype)
    b = torch.full((8,), divisor, dtype=dtype)
    for op in (A.remainder.Tensor, A.fmod.Tensor):
        check(op, a, b)
    for mode in (None, "floor", "trunc"):
        check(A.div.Tensor_mode, a, b, rounding_mode=mode)
        check(A.div.Scalar_mode, a, divisor, rounding_mode=mode)
    check(A.remainder.Scalar, a, divisor)
    check(A.fmod.Scalar, a, divisor)
    check(A.remainder.Scalar_Tensor, 7, b)


def many_pairs():
    """Return dividends and divisors of all sizes: whole numbers, and quotients close to a whole number."""
    sizes = torch.logspace(-6, 6, 60)
    multiples = torch.arange(1, 61) * sizes.flip(0)
    yield sizes[:, None] * torch.randn(60, 40), torch.randn(40)
    yield torch.randn(3000), torch.tensor(0.1)
    yield torch.randint(-1000, 1000, (2000,)).float(), torch.randint(1, 9, (2000,)).float()
    yield (
        torch.cat([multiples, multiples.nextafter(torch.tensor(0.0)), -multiples]).repeat(10),
        sizes.flip(0).repeat(30),
    )
    yield torch.tensor(3.5), torch.randn(2000)
    yield torch.randn(2000), torch.randint(1, 9, (2000,))
    yield torch.cat([torch.randn(2000), SPECIAL]), torch.tensor(2.0)


@pytest.mark.parametrize("case", range(len(list(many_pairs()))))
def test_many_pairs(case):
    a, b = list(many_pairs())[case]
    for op in (A.fmod.Tensor, A.remainder.Tensor):
        check(op, a, b, rtol=0, atol=0)
        if b.ndim == 0:
            check(getattr(A, op._opname).Scalar, a, b.item(), rtol=0, atol=0)
    for op in (A.maximum.default, A.minimum.default):
        check(op, a, b)
        check(op, b, a)
    if b.is_floating_point():
        check(A.logaddexp.default, a, b)
        check(A.logaddexp2.default, b, a)


def test_products_of_many():
    for x in (1 + torch.randn(45, 45, 45) / 1000, torch.randint(-3, 4, (5000,)), torch.rand(70, 70).t() + 0.5):
        check(A.prod.default, x, rtol=5e-5)  # of 91,125 factors, whose order depends on the threads
    check(A.prod.default, torch.ones(100, 90, dtype=torch.uint8), dtype=F32)


def special_pairs(dtype):
    values = SPECIAL.to(dtype)
    return values[:, None].expand(len(values), len(values)), values[None, :]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize(
    "name",
    "maximum minimum fmax fmin atan2 hypot logaddexp logaddexp2".split()
    + [f"{n}.Tensor" for n in "add sub mul div remainder fmod copysign xlogy eq ne lt le gt ge".split()]
    + ["pow.Tensor_Tensor"],
)
def test_special_values(name, dtype):
    packet, _, overload = name.partition(".")
    check(getattr(getattr(A, packet), overload or "default"), *special_pairs(dtype))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.7, 4, -3])
def test_pow_scalar(exponent):
    for dtype in (F32, F64, F16, BF16):
        check(A.pow.Tensor_Scalar, SPECIAL[(2 if dtype in (F16, BF16) else 0) : 9].to(dtype), exponent)
        check(A.pow.Tensor_Scalar, sample(3, 4, dtype=dtype, scale=1), exponent)
    check(A.pow.Scalar, 2, sample(3, 4))
    if isinstance(exponent, float) or exponent >= 0:
        check(A.pow.Tensor_Scalar, sample(3, 4, dtype=I64), exponent)
        check(A.pow.Tensor_Scalar, sample(3, 4, dtype=U8), exponent)


@pytest.mark.parametrize("dtype", [I8, I32, I64], ids=str)
def test_pow_of_integers_takes_negative_exponents_and_wraps(dtype):
    base = torch.tensor([-2, -1, 1, 2, 3, -3]).to(dtype)
    check(A.pow.Tensor_Tensor, base[:, None], torch.tensor([-3, -2, -1, 0, 1, 2, 3, 7, 40]).to(dtype))


def test_integers_wrap():
    big = torch.tensor([100, 127, -128], dtype=I8)
    for op in [A.add.Tensor, A.sub.Tensor, A.mul.Tensor]:
        check(op, big, big.flip(0))
    check(A.neg.default, big)
    check(A.abs.default, big)
    check(A.add.Tensor, torch.tensor([250], dtype=U8), torch.tensor([10], dtype=U8))


@pytest.mark.parametrize("dtype", [*INTS, BOOL], ids=str)
def test_bitwise(dtype):
    a, b = sample(3, 4, dtype=dtype), sample(4, dtype=dtype, seed=1)
    for name in ("and", "or", "xor"):
        check(getattr(A, f"bitwise_{name}").Tensor, a, b)
        check(getattr(A, f"bitwise_{name}").Scalar, a, 1)
    check(A.bitwise_not.default, a)
    if dtype is not BOOL:
        check(A.bitwise_left_shift.Tensor, a, b.abs() % 7)
        check(A.bitwise_right_shift.Tensor, a, b.abs() % 7)
        check(A.bitwise_left_shift.Tensor_Scalar, a, 2)
        check(A.bitwise_right_shift.Tensor_Scalar, a, 2)
        check(A.gcd.default, a, b)
        check(A.lcm.default, a, b)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32, BOOL], ids=str)
def test_logical(dtype):
    a, b = sample(3, 4, dtype=dtype), sample(4, dtype=I64, seed=1)
    for name in ("and", "or", "xor"):
        check(getattr(A, f"logical_{name}").default, a, b)


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, I32, U8], ids=str)
def test_clamp(dtype):
    x = sample(3, 4, dtype=dtype)
    for low, high in [(1, 3), (None, 2), (2, None), (3, 1), (0.5, 1.5)]:
        check(A.clamp.default, x, low, high)
    check(A.clamp.Tensor, x, sample(4, dtype=dtype, seed=1), None)
    check(A.clamp.Tensor, x, sample(4, dtype=dtype, seed=1), sample(3, 1, dtype=dtype, seed=2))
    if dtype.is_floating_point:
        check(A.clamp.default, SPECIAL.to(dtype), -1.0, torch.nan)
        check(A.clamp.Tensor, SPECIAL.to(dtype), SPECIAL.flip(0).to(dtype), None)


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=str)
def test_ternary(dtype):
    x, a, b = sample(3, 4, dtype=dtype), sample(4, dtype=dtype, seed=1), sample(3, 1, dtype=dtype, seed=2)
    check(A.addcmul.default, x, a, b, value=0.3)
    check(A.addcdiv.default, x, a, b.abs() + 1, value=0.3)
    for weight in (0.0, 0.3, 0.8, 1.0):
        check(A.lerp.Scalar, x, sample(3, 4, dtype=dtype, seed=3), weight)
    check(A.lerp.Tensor, x, sample(3, 4, dtype=dtype, seed=3), torch.linspace(0, 1, 4).to(dtype))


CASTS = list(itertools.product((F32, F64, F16, BF16, *INTS, BOOL), repeat=2))


@pytest.mark.parametrize(("a", "b"), CASTS, ids=str)
def test_casts(a, b):
    x = sample(3, 4, dtype=a).abs() if b is U8 and a is not BOOL else sample(3, 4, dtype=a)
    check(A._to_copy.default, x.t(), dtype=b)
    check(A._to_copy.default, sample(0, dtype=a), dtype=b)


def test_cast_corner_cases():
    check(A._to_copy.default, SPECIAL, dtype=BF16)
    check(A._to_copy.default, SPECIAL, dtype=F16)
    check(A._to_copy.default, SPECIAL, dtype=BOOL)
    check(A._to_copy.default, torch.tensor([1e-40, 65519.0, 65520.0, 3.4e38, 1.00390625, 1.01171875]), dtype=BF16)
    check(A._to_copy.default, torch.tensor([65519.0, 65520.0, 1e-8]), dtype=F16)
    check(A._to_copy.default, torch.tensor([-129, 300, 2**40 + 5]), dtype=I8)
    check(A._to_copy.default, torch.tensor([-2.9, 2.9, -0.5]), dtype=I32)
    check(A._to_copy.default, sample(3), dtype=torch.complex64)
