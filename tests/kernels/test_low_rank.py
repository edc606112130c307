"""Products with matrices of low rank: the kernel against the operator in eager, and sizes that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from delegate.edge.conversations import low_rank_product
from delegate.errors import KernelError
from delegate.kernels.portable import TABLE
from delegate.program.dtypes import DType
from delegate.testing import assert_same

INPUTS, OUTPUTS, MOST, RANKS = 6, 5, 4, (3, 0, 4, 1)


def arguments(rows: list[int], between: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return arguments, with NaN in the rows of matrices after their rank."""
    torch.manual_seed(0)
    x = torch.randn(len(rows), *between, INPUTS, dtype=dtype)
    first, second = (torch.randn(len(RANKS), MOST, size, dtype=dtype) for size in (INPUTS, OUTPUTS))
    for row, rank in enumerate(RANKS):
        first[row, rank:] = second[row, rank:] = torch.nan
    return [x, first, second, torch.tensor(RANKS), torch.tensor(rows, dtype=torch.int64)]


def run(args: list[torch.Tensor]) -> np.ndarray:
    kernel = TABLE.find("delegate.low_rank_product.default", {DType[str(a.dtype)[6:]] for a in args})
    assert kernel is not None
    out = np.full((*args[0].shape[:-1], OUTPUTS), np.nan, args[0].numpy().dtype)
    kernel.function(*(a.numpy() for a in args), out=out)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("between", [(), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("rows", [[2], [1], [0, 0, 0], [0, 1, 2, 3], [3, 3, 1, 1, 3], []], ids=str)
def test_as_in_eager(rows, between, dtype):
    args = arguments(rows, between, dtype)
    assert_same(run(args), low_rank_product(*args))
    for number, row in enumerate(rows):
        rank = RANKS[row]
        expected = args[0][number] @ args[1][row, :rank].T @ args[2][row, :rank]
        assert_same(low_rank_product(*args)[number], expected)


@pytest.mark.parametrize(
    ("index", "value", "match"),
    [
        (1, torch.zeros(4, MOST, 7), r"matrices of shapes \(4, 4, 7\) and \(4, 4, 5\) for 6 inputs"),
        (2, torch.zeros(4, 3, OUTPUTS), r"matrices of shapes"),
        (2, torch.zeros(3, MOST, OUTPUTS), r"matrices of shapes"),
        (3, torch.tensor([1, 1, 1]), r"ranks \[1, 1, 1\] for 4 matrices of at most 4"),
        (3, torch.tensor([1, 1, 5, 1]), r"ranks \[1, 1, 5, 1\]"),
        (3, torch.tensor([1, 1, -1, 1]), r"ranks \[1, 1, -1, 1\]"),
        (4, torch.tensor([0, 4]), r"rows \[0, 4\] of 2 tokens for 4 matrices"),
        (4, torch.tensor([-1, 0]), r"rows \[-1, 0\]"),
        (4, torch.tensor([0]), r"rows \[0\] of 2 tokens"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit(index, value, match):
    args = arguments([0, 2])
    args[index] = value
    with pytest.raises(KernelError, match=match):
        run(args)
