"""Numbers that are read as booleans: true unless they equal 0, whatever their low bits and however small they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

# Integers whose low bits are 0, and floats that an integer, a half or a flush of subnormal numbers turns into 0.
VALUES: Mapping[torch.dtype, tuple[float, ...]] = {
    torch.bool: (0, 1),
    torch.uint8: (0, 128, 2),
    torch.int8: (0, -128, 2),
    torch.int16: (0, 256, -256, 1 << 14),
    torch.int32: (0, 256, 1 << 16, 1 << 30, -(1 << 31)),
    torch.int64: (0, 256, 1 << 31, 1 << 32, 1 << 40, -(1 << 63)),
    torch.float16: (0.0, -0.0, 0.25, float("nan"), float("-inf"), 6e-8),
    torch.bfloat16: (0.0, -0.0, 0.25, float("nan"), float("inf"), 1e-30),
    torch.float32: (0.0, -0.0, 0.25, -0.5, float("nan"), float("inf"), 1e-30, 1e-40),
    torch.float64: (0.0, -0.0, 0.25, float("nan"), float("-inf"), 1e-300),
}

_FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.any(),
    lambda x: x.all(),
    lambda x: x.any(1),
    lambda x: x.all(1),
    lambda x: x.any(0, keepdim=True),
    lambda x: x.all(0, keepdim=True),
    lambda x: torch.any(x, (0, 1)),
    lambda x: torch.all(x, (0, 1)),
    lambda x: x.bool(),
    lambda x: torch.zeros_like(x, dtype=torch.bool).copy_(x),
    lambda x: x.logical_not(),
    lambda x: x.logical_and(x.flip(0)),
    lambda x: x.logical_or(x.flip(0)),
    lambda x: x.logical_xor(x.flip(0)),
    *(
        partial(lambda combine, other, x: combine(x, torch.tensor(other)), combine, other)
        for combine in (torch.logical_and, torch.logical_or, torch.logical_xor)
        for other in (256, 0.25, 1e-40)  # a tensor without dimensions is cast to the dtype of x, in which it may be 0
    ),
    lambda x: x.logical_and(torch.tensor([256, 1])),
    lambda x: x.logical_or(torch.tensor([1e-300, 0.0], dtype=torch.float64)),
    lambda x: x != 0,
    lambda x: x == 0,
    lambda x: torch.where(x.bool(), 1.0, 2.0),
    lambda x: torch.count_nonzero(x, 1),
)


def compare(dtype: torch.dtype, config: Mapping[str, Any]) -> frozenset[str]:
    """Compare the truth of numbers with eager: pairs of each value with 0 and with itself, each pair alone and all.

    Returns:
        The operators that ran on a backend, such as "aten.any.dim".
    """
    module = Function(lambda x: [function(x) for function in _FUNCTIONS])
    values = torch.tensor(VALUES[dtype], dtype=dtype)
    pairs = torch.cat([torch.stack([values, torch.zeros_like(values)], 1), torch.stack([values, values], 1)])
    rows = torch.export.Dim("rows", min=1, max=64)
    exported = torch.export.export(module, (pairs,), dynamic_shapes=(({0: rows},),))
    program = delegate.to_backend(exported, config=dict(config))
    for x in (pairs, *pairs.split(1)):
        assert_same(program(x), module(x), 0.0)
    return frozenset(n.op for n in program.report.nodes if n.backend != "portable")
