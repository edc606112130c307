"""Helpers of kernels against torch: type promotion, bfloat16, the error function, half types in the table."""

import itertools
import math

import numpy as np
import pytest
import torch

from delegate.edge.node import dtype_of
from delegate.kernels.erf import erf, erfc
from delegate.kernels.half_precision import from_bfloat16, from_float16, to_bfloat16
from delegate.kernels.operands import BLOCK, axes_of, cast, level, promote_types, result_type
from delegate.kernels.table import REAL, KernelTable
from delegate.program.dtypes import DType
from delegate.testing import assert_same

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


def test_promotion_is_that_of_torch():
    for a, b in itertools.product(DTYPES, repeat=2):
        if expected := dtype_of(torch.promote_types(a, b)):
            assert promote_types(dtype_of(a).numpy, dtype_of(b).numpy) == expected.numpy, (a, b)
        for shape in ((2,), ()):
            x, y = torch.zeros(2, dtype=a), torch.zeros(shape, dtype=b)
            expected = dtype_of(torch.result_type(x, y))
            if expected is not None:  # programs hold no complex numbers of half precision
                assert result_type(x.numpy(), y.numpy()) == expected.numpy, (a, b, shape)


@pytest.mark.parametrize("number", [True, 2, 2.5, 2j])
def test_promotion_with_numbers_is_that_of_torch(number):
    for a, shape in itertools.product(DTYPES, [(2,), ()]):
        x = torch.zeros(shape, dtype=a)
        if a is not torch.float16 or not isinstance(number, complex):
            assert result_type(x.numpy(), number) == dtype_of(torch.result_type(x, number)).numpy, (a, shape)


def test_every_bfloat16_is_read_exactly():
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    expected = torch.from_numpy(bits).view(torch.bfloat16).float().numpy()
    assert np.array_equal(from_bfloat16(bits).view(np.uint32), expected.view(np.uint32))
    assert from_bfloat16(np.asarray(0x3F80, np.uint16)) == 1


def test_every_float16_is_read_exactly():
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    table = every[1 << 15 :].reshape(64, 512)
    for x in (every, table, table.T, table[::2], table[:, ::-1], table.reshape(8, 8, 512).swapaxes(0, 1), every[:5]):
        expected, actual = x.astype(np.float32), from_float16(x)
        assert np.array_equal(actual.view(np.uint32), expected.view(np.uint32))
        assert actual.strides == expected.strides
    assert from_float16(np.asarray(1.5, np.float16)) == 1.5


def test_float32_is_rounded_to_bfloat16_as_torch_does():
    values = np.random.default_rng(0).integers(0, 1 << 32, 3 * BLOCK + 5, dtype=np.uint32).view(np.float32)
    ties = (np.arange(0x3F80_0000, 0x3F90_0000, 0x8000, dtype=np.uint32)).view(np.float32)
    for x in (values, ties, np.array([np.inf, -np.inf, 0.0, -0.0, 3.4e38], np.float32), values[:6].reshape(2, 3).T):
        expected = torch.from_numpy(x.copy()).bfloat16()
        actual = torch.from_numpy(to_bfloat16(x)).view(torch.bfloat16)
        assert_same(actual, expected, tolerance=0)
    strided = np.zeros((3, 4), np.uint16)
    to_bfloat16(np.ones((4, 3), np.float32), strided.T)
    assert (strided == 0x3F80).all()


@pytest.mark.parametrize(("dtype", "steps"), [(np.float32, 5), (np.float64, 20)])
def test_error_function_is_exact_to_a_few_steps(dtype, steps):
    x = np.concatenate([np.linspace(-6, 6, 20001), np.logspace(-30, 0, 200), [0.0, 30.0]]).astype(dtype)
    for function, exact in ((erf, math.erf), (erfc, math.erfc)):
        out = np.empty_like(x)
        function(x, out=out)
        expected = np.array([exact(v) for v in x.astype(np.float64)])
        tolerance, tiny = steps * np.finfo(dtype).eps, np.finfo(dtype).tiny
        assert_same(out.astype(np.float64), expected, tolerance, each=True, at_least=tiny)


def test_numbers_wrap_as_in_c():
    assert cast(-1, np.dtype(np.uint8)) == 255
    assert level(-1, np.zeros(3, np.uint8)).tolist() == [255, 255, 255]


def test_axes():
    x = np.zeros((2, 3, 4))
    assert axes_of(x, None) == axes_of(x, []) == (0, 1, 2)
    assert axes_of(x, [-1, 0]) == (2, 0)
    assert axes_of(x, -2) == (1,)
    assert axes_of(np.zeros(()), [0]) == ()


def test_half_types_run_in_float32_where_no_row_takes_them():
    table = KernelTable("mine")
    seen = []

    @table.kernel("aten.double.default", dtypes=REAL - {DType.float16})
    def double(x, dtype, *, out):
        seen.append((x.dtype, dtype, out.dtype))
        np.multiply(x, 2, out=out)

    for half, one in ((DType.float16, np.float16(1.5)), (DType.bfloat16, np.uint16(0x3FC0))):
        x, out = np.full((2, 3), one), np.empty((2, 3), half.numpy)
        kernel = table.find("aten.double.default", [half, half])
        kernel.function(x, half, out=out)
        assert seen.pop() == (np.float32, DType.float32, np.float32)
        assert kernel.dtypes == {half}
        assert out.tolist() == [[3.0] * 3] * 2 if half is DType.float16 else [[0x4040] * 3] * 2
    assert table.find("aten.double.default", [DType.bfloat16, DType.uint16]) is None
    assert table.find("aten.double.default", [DType.complex64]) is None
    assert table.find("aten.half.default", [DType.float16]) is None
