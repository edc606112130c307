"""Every kernel with `in_place` gives the same results in the memory of its first argument."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
import torch

from delegate.kernels.portable import TABLE
from tests.support.kernels import check, sample

OWN = {"delegate.update_cache.default"}  # test_cached_attention.py tests it
MARKED = sorted({kernel.op for kernel in TABLE if kernel.in_place} - OWN)
WHOLE, ROWS = sample(3, 4).abs() + 0.5, sample(2, 4).abs() + 0.5
INTEGERS, COUNTS = torch.arange(12).reshape(3, 4) + 1, torch.full((3, 4), 3)
GRID, INDEX, MASK = torch.tensor([[2, 0], [1, 1]]), torch.tensor([2, 0]), WHOLE > 2

# What writes a part of a tensor (3, 4): its other arguments.
WRITES: dict[str, tuple[Any, ...]] = {
    "aten.copy.default": (WHOLE * 2,),
    "aten.scatter.src": (0, GRID, ROWS),
    "aten.scatter.value": (0, GRID, 2.0),
    "aten.scatter.reduce": (0, GRID, ROWS, {"reduce": "add"}),
    "aten.scatter.value_reduce": (0, GRID, 2.0, {"reduce": "multiply"}),
    "aten.scatter_add.default": (0, GRID, ROWS),
    "aten.scatter_reduce.two": (0, GRID, ROWS, "mean"),
    "aten.index_put.default": ([INDEX], ROWS, True),
    "aten.index_add.default": (0, INDEX, ROWS, {"alpha": 3}),
    "aten.masked_fill.Scalar": (MASK, 2.0),
    "aten.masked_fill.Tensor": (MASK, torch.tensor(2.0)),
    "aten.masked_scatter.default": (MASK, WHOLE * 2),
    "aten.slice_scatter.default": (ROWS, 0, 1, 3),
    "aten.select_scatter.default": (ROWS[0], 0, 1),
    "aten.diagonal_scatter.default": (ROWS[0, :3],),
    "aten.as_strided_scatter.default": (ROWS, (2, 4), (4, 1), 4),
}
# What is computed element by element: numbers that are not 2.
NUMBERS = {"alpha": 3, "min": 1, "max": 3, "min_val": 1, "max_val": 3}


def find(name: str) -> Any:
    return reduce(getattr, name.split("."), torch.ops)


def elementwise(op: Any, whole: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments in the types of the schema; integers if `whole`."""
    tensors = iter((INTEGERS, COUNTS, COUNTS + 2) if whole else (WHOLE, WHOLE.flip(0) + 0.25, WHOLE + 2))
    arguments = [
        next(tensors) if "Tensor" in str(argument.type) else NUMBERS.get(argument.name, 2)
        for argument in op._schema.arguments
    ]
    keywords = [argument.kwarg_only for argument in op._schema.arguments]
    named = {a.name: v for a, v in zip(op._schema.arguments, arguments, strict=True) if a.kwarg_only}
    return [v for v, keyword in zip(arguments, keywords, strict=True) if not keyword], named


@pytest.mark.parametrize("name", [n for n in MARKED if n not in WRITES and "Scalar_Tensor" not in n])
def test_elementwise(name):
    op = find(name)
    takes_integers = any(word in name for word in ("bitwise", "shift", "gcd", "lcm"))
    args, kwargs = elementwise(op, takes_integers)
    check(op, *args, **kwargs)


@pytest.mark.parametrize("name", WRITES)
def test_writes(name):
    assert name in MARKED
    *args, last = WRITES[name]
    check(find(name), WHOLE, *args, **last) if isinstance(last, dict) else check(find(name), WHOLE, *args, last)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_rows(dtype):
    """Test the common writes to a cache of keys and values."""
    cache, rows = sample(3, 4, dtype=dtype), sample(2, 4, dtype=dtype)
    check(torch.ops.aten.index_put.default, cache, [INDEX], rows)
    check(torch.ops.aten.index_put.default, cache, [INDEX], rows, True)
    check(torch.ops.aten.slice_scatter.default, cache, rows, 0, 1, 3)
    check(torch.ops.aten.add.Tensor, cache, sample(3, 4, dtype=dtype, seed=1), alpha=3)
