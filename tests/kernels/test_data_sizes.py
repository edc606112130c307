"""Kernels that allocate their results, compared with torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from delegate.errors import KernelError
from delegate.kernels.portable import TABLE
from delegate.program.dtypes import DType
from tests.support.kernels import check

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
X = torch.tensor([[2.0, 0.0, 2.0], [1.0, 0.0, 2.0], [2.0, 0.0, 2.0]])
CASES = [
    (aten.nonzero.default, X),
    (aten.nonzero.default, X[0, 0]),
    (aten.nonzero.default, X[:0]),
    (aten.nonzero.default, X.t()),
    (aten.masked_select.default, X, X > 1),
    (aten.masked_select.default, X, torch.tensor([[True], [False], [True]])),
    (aten.masked_select.default, X, torch.tensor(False)),
    (aten.index.Tensor, X, [X > 1]),
    (aten.index.Tensor, X, [None, torch.tensor([True, False, True])]),
    (aten.index.Tensor, X, [torch.tensor([True, False, True]), torch.tensor([0, 1])]),
    (aten._unique2.default, X, True, True, True),
    (aten._unique2.default, X, True, False, False),
    (aten._unique2.default, X, True, True, False),
    (aten._unique2.default, X[:0], True, True, True),
    (aten.unique_dim.default, X, 0, True, True, True),
    (aten.unique_dim.default, X, -1, True, True, True),
    (aten.unique_consecutive.default, X, True, True),
    (aten.unique_consecutive.default, X, True, True, 0),
    (aten.unique_consecutive.default, X, False, True, 1),
    (aten.unique_consecutive.default, X[:0], True, True),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c[0]))
def test_as_torch(case, dtype):
    op, x, *args = case
    if op is aten.unique_dim.default and dtype is torch.bfloat16:
        pytest.skip("torch has none")
    check(op, x.to(dtype), *args)


@pytest.mark.parametrize("weights", [None, torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("least", [0, 9])
def test_bincount(weights, least):
    weight = None if weights is None else torch.ones(6, dtype=weights)
    check(aten.bincount.default, torch.tensor([1, 5, 1, 0, 1, 3]), weight, least)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("repeats", [[2, 0, 1], [0, 0], []], ids=str)
def test_repeat_interleave(repeats, dtype):
    kernel = TABLE.find("aten.repeat_interleave.Tensor", [DType[str(dtype).removeprefix("torch.")]], allocates=True)
    counts = torch.tensor(repeats, dtype=dtype)
    assert kernel is not None
    np.testing.assert_array_equal(kernel.function(counts.numpy(), None), aten.repeat_interleave.Tensor(counts).numpy())


def test_nan_is_never_equal():
    check(aten._unique2.default, torch.tensor([1.0, torch.nan, torch.nan]), True, True, True)


@pytest.mark.parametrize("op", ["aten.repeat_interleave.Tensor", "aten.bincount.default"])
def test_negative_counts(op):
    kernel = TABLE.find(op, [DType.int64], allocates=True)
    assert kernel is not None
    with pytest.raises(KernelError, match=r"negative .*-1"):
        kernel.function(np.array([1, -1]), *([None] if "repeat" in op else [None, 0]))


def test_an_operator_may_have_a_kernel_of_each_kind():
    for allocates in (False, True):
        kernel = TABLE.find("aten.index.Tensor", [DType.float32, DType.int64], allocates=allocates)
        assert kernel is not None
        assert kernel.allocates is allocates
    one_kind = TABLE.find("aten.nonzero.default", [DType.float32, DType.int64])
    assert one_kind is not None  # it fills memory too, where another value has told the sizes already
    assert not one_kind.allocates
    places = np.empty((2, 1), np.int64)
    one_kind.function(np.array([0.0, 2.0, 3.0], np.float32), out=places)
    assert places.tolist() == [[1], [2]]
    with pytest.raises(KernelError, match=r"it returned the shape \[1, 1\], but the result has the shape \[2, 1\]"):
        one_kind.function(np.array([0.0, 2.0], np.float32), out=places)
