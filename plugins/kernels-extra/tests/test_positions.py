"""Writes and reads at positions, and the parts of numbers, against torch."""

from __future__ import annotations

import pytest
import torch

from tests.support.kernels import check, sample

aten = torch.ops.aten
INDEX = torch.tensor([0, 2, 0])
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("how", ["prod", "mean", "amax", "amin"])
def test_index_reduce(how: str, include_self: bool, dtype: torch.dtype) -> None:
    x, source = sample(4, 3, dtype=dtype), sample(3, 3, dtype=dtype, seed=1)
    check(aten.index_reduce.default, x, 0, INDEX, source, how, include_self=include_self)


@pytest.mark.parametrize("accumulate", [True, False])
def test_put(accumulate: bool) -> None:
    check(aten.put.default, sample(4, 3), torch.tensor([[0, -1], [5, 7]]), sample(2, 2), accumulate)


def test_renormalized_rows() -> None:
    check(aten.embedding_renorm.default, sample(5, 4), INDEX, 1.5, 2.0)


@pytest.mark.parametrize("size", [2, 30])
def test_coordinates_of_nonzero_elements(size: int) -> None:
    check(aten.nonzero_static.default, sample(4, 3, dtype=torch.bool), size=size, fill_value=-7)


NEIGHBORS = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 3.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_neighbors(dtype: torch.dtype) -> None:
    x = NEIGHBORS.to(dtype)
    for op in (aten.nextafter.default, torch.ops.prims.nextafter.default):
        check(op, x[:, None].expand(8, 8), x[None].expand(8, 8))


def test_parts_of_numbers() -> None:
    check(aten.frexp.Tensor, NEIGHBORS)
