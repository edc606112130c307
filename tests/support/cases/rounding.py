"""Results of 16-bit floats that a wider dtype shows: rounded, and infinite, as in eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from delegate.testing import assert_same
from tests.support.cases.casts import lowered, ran
from tests.support.lowering import refused

_WEIGHT = torch.linspace(-30, 30, 16).reshape(4, 4)
VALUES = torch.cat([torch.linspace(-2, 2, 12), torch.tensor([100.0, 60000.0, -70.0, 3.3])])

# The only rounding is that of the last 16-bit result, so that results are equal bit by bit.
SHOWN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "product": lambda x: (x * 1000).float(),
    "sum": lambda x: (x + 0.375).float(),
    "activation": lambda x: (x * 1.125).relu().float(),
    "view": lambda x: (x * 1000).reshape(2, -1).t().float(),
    "joined": lambda x: torch.cat([x, x * 1000]).float(),
    "chosen": lambda x: torch.where(x > 0, x * 1.125, x * 1.375).float(),
    "promoted": lambda x: x * 1.125 + torch.ones(16),
    "product in float32": lambda x: (x * 1.125).float() * 2,
    "double": lambda x: (x * 1.125).double(),
    "sum of float32": lambda x: torch.sum(x[:12] * 1.125, 0, dtype=torch.float32, keepdim=True),
    "overflow": lambda x: (x * 1000).isinf(),
}
# Steps of a whole number, where a result that is not rounded differs by one.
STEPS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "integers": lambda x: (x * 1.3).to(torch.int32),
    "floor": lambda x: (x * 1.1).floor(),
    "round": lambda x: (x * 1.1).round(),
    "comparison": lambda x: (x * 1.1) >= (x + x * 0.1),
    "sign": lambda x: (((x + 1000) - 1000) - x.round()).sign(),
}
_NEIGHBOURS = torch.arange(-4096, 4096) / 1024
# Rounded between two operators by eager, or summed in another order; infinities are in the same places.
NEAR: Mapping[str, Callable[[Tensor], Tensor]] = {
    "returned": lambda x: (x.float() * 1000).to(x.dtype).float(),
    "two operators": lambda x: (x * 3 - x).float(),
    "linear": lambda x: F.linear(x.reshape(4, 4), _WEIGHT.to(x.dtype)).float(),
    "matrix product": lambda x: (x.reshape(4, 4) @ (x * 0 + 1).reshape(4, 4)).float(),
    "convolution": lambda x: F.conv1d(x.reshape(1, 4, 4), _WEIGHT.to(x.dtype)[..., None]).float(),
}

# The cast that shows a result stays with kernels, which round first.
_ROUNDED: Mapping[str, Mapping[str, int]] = {
    **{name: {"aten._to_copy.default": 1} for name in (*SHOWN, *NEAR)},
    "promoted": {"aten.add.Tensor": 1},
    "sum of float32": {"aten.sum.dim_IntList": 1},
}
# Backend -> case -> the operators that the backend refuses, with the number of their nodes.
REFUSED: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "xnnpack": {
        **_ROUNDED,
        "chosen": {"aten.gt.Scalar": 1, "aten.where.self": 1},
        "overflow": {"aten.isinf.default": 1},
    },
    "openvino": {
        **_ROUNDED,
        "overflow": {"aten.isinf.default": 1},
        "overflow in torch.bfloat16": {},
        "matrix product": {"aten.mul.Tensor": 1, "aten._to_copy.default": 1},
    },
    "cuda": {"double": {"aten._to_copy.default": 1}, "matrix product": {"aten.mul.Tensor": 1}},
}


def check_shown(backend: str, dtype: torch.dtype) -> None:
    """Assert that the results of a backend are as rounded as eager's, and that it runs all but the REFUSED nodes."""
    x = VALUES.to(dtype)
    for name, function in {**SHOWN, **NEAR}.items():
        program = lowered(function, x, backend)
        table = REFUSED[backend]
        assert refused(program, backend) == table.get(f"{name} in {dtype}", table.get(name, {})), name
        result, expected = program(x), function(x)
        tolerance = torch.finfo(dtype).eps if name in NEAR or name == "sum of float32" else 0
        assert result.dtype is expected.dtype
        assert_same({name: result}, {name: expected}, tolerance)


def check_steps(backend: str, dtype: torch.dtype) -> None:
    """Assert that functions with steps get the rounded results of a backend."""
    x = _NEIGHBOURS.to(dtype)
    for name, function in STEPS.items():
        expected = function(x)
        assert not torch.equal(function(x.float()), expected.to(function(x.float()).dtype)), name  # else all is one
        program = lowered(function, x, backend)
        assert backend in ran(program), name
        assert_same({name: program(x)}, {name: expected}, 0)


def check_kept(backend: str) -> None:
    """Assert that casts of inputs, and sections in float32 of bfloat16, stay on a backend."""
    for dtype in (torch.float16, torch.bfloat16):
        x = VALUES[:12].to(dtype)
        assert ran(lowered(lambda v: v.float() * 2, x, backend)) == {backend}
        assert ran(lowered(lambda v: v.reshape(3, 4).t().float() * 2, x, backend)) == {backend}
    section = lowered(lambda v: (v * 2) * (v * 2).float().pow(2).mean(0).rsqrt().to(v.dtype), x, backend)
    assert len(section.report.partitions) == 1
