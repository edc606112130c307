"""Reductions and elementwise functions of short rows return the bits that NumPy returns."""

from __future__ import annotations

import numpy as np
import pytest

from delegate.kernels import short_rows

ROWS = 512  # more than enough to work by columns
RANDOM = np.random.default_rng(0)


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    values = np.asarray(RANDOM.standard_normal(shape) * 3)
    if dtype.startswith("float"):
        values[RANDOM.random(shape) < 0.05] = np.nan
        values[RANDOM.random(shape) < 0.05] = -np.inf
        values[RANDOM.random(shape) < 0.05] = -0.0
    return np.asarray(values.astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("width", range(1, 10))
@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.maximum, np.minimum])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_reductions(ufunc: np.ufunc, width: int, dtype: str, keepdims: bool) -> None:
    x = numbers(ROWS, 2, width, dtype=dtype)
    wide = np.dtype("int64") if x.dtype.kind in "iub" and ufunc in (np.add, np.multiply) else x.dtype
    expected = ufunc.reduce(x, axis=2, dtype=wide, keepdims=keepdims)
    out = np.empty_like(expected)
    results = [
        short_rows.reduce(ufunc, x, (2,), dtype=wide, keepdims=keepdims),
        short_rows.reduce(ufunc, x, (2,), dtype=wide, keepdims=keepdims, out=out),
        short_rows.reduce(ufunc, np.asfortranarray(x), (2,), dtype=wide, keepdims=keepdims),
    ]
    for result in (*results[:2], out):
        np.testing.assert_array_equal(result, expected, strict=True)
        assert (np.signbit(result) == np.signbit(expected))[~np.isnan(expected)].all()
    assert results[2].shape == expected.shape


def test_a_narrower_result_is_rounded_once() -> None:
    x, out = numbers(ROWS, 4), np.empty(ROWS, np.float16)
    short_rows.reduce(np.maximum, x, (1,), dtype=x.dtype, out=out)
    np.testing.assert_array_equal(out, np.maximum.reduce(x, axis=1).astype(np.float16))


OPERANDS = {
    "pairs": ((ROWS, 1, 2), (1, 8, 2)),
    "a number for each row": ((ROWS, 4), (ROWS, 1)),
    "a row for all": ((ROWS, 4), (4,)),
    "a number for all": ((ROWS, 4), ()),
    "equal": ((ROWS, 4), (ROWS, 4)),
    "long rows": ((ROWS, 1, 5), (1, 8, 5)),
}


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("ufunc", [np.add, np.divide, np.maximum, np.less])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_elementwise_functions(ufunc: np.ufunc, name: str) -> None:
    a, b = (numbers(*shape) for shape in OPERANDS[name])
    for left, right in ((a, b), (b, a), (a[::2], b[:1] if b.ndim and len(b) != len(a) else b[::2] if b.ndim else b)):
        expected = ufunc(left, right)
        out = np.empty_like(expected)
        short_rows.apply(ufunc, left, right, out)
        np.testing.assert_array_equal(out, expected, strict=True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_result_in_the_memory_of_an_operand() -> None:
    """Parts of rows, as of boxes, whose result overwrites one of them."""
    boxes, sizes = numbers(ROWS, 8), numbers(ROWS, 1)
    part = boxes[:, 2:6]
    expected = part * sizes
    short_rows.apply(np.multiply, part, sizes, part)
    np.testing.assert_array_equal(part, expected)
