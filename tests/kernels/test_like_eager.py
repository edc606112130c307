"""Elementwise operators on portable kernels, equal to eager in each bit: signs of zero, and the steps of 16-bit floats.

Torch rounds the operands to the 16-bit float, and also the intermediate results of some operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from delegate.plugins import PORTABLE
from tests.support.functions import Function
from tests.support.lowering import assert_same, compiled

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
INTS = (torch.uint8, torch.int16, torch.int64)
NAN, INF = torch.nan, torch.inf
FLOATS = torch.tensor([
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.0, -2.0, 2.5, 3.0, -3.0, 0.1, -0.7, 4.0, -6.0, 20.0, 100.0, 257.0,
    -258.5, 1e3, -1001.0, 4097.0, 65504.0, INF, -INF, NAN,
], dtype=F64)  # fmt: skip
WHOLE = (1, -1, 2, 3, 7, -7, 10, 127, 255, 257, -258, 1001, 4099, 65537, 2**31 - 1, 2**53 + 1)


def values(dtype: torch.dtype) -> torch.Tensor:
    """Return the values of a dtype that it holds without overflow."""
    if dtype.is_floating_point:
        return FLOATS.to(dtype)
    limits = torch.iinfo(dtype)
    return torch.tensor([n for n in WHOLE if limits.min <= n <= limits.max], dtype=dtype)


def pairs(first: torch.dtype, second: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every pair of values of two dtypes."""
    a, b = values(first), values(second)
    return a.repeat_interleave(len(b)), b.repeat(len(a))


def check(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], tolerance: float = 0) -> None:
    """Assert that kernels return the results of eager, with its signs of zero."""
    program = compiled(Function(function), inputs)
    assert {node.backend for node in program.report.nodes} == {PORTABLE}
    assert_same(program(*inputs), function(*inputs), tolerance, each=True, signed_zeros=True)


def floor(a: Any, b: Any) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


def trunc(a: Any, b: Any) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "remainder": torch.remainder, "fmod": torch.fmod, "floor_divide": torch.floor_divide, "floor": floor,
    "trunc": trunc, "xlogy": torch.xlogy, "special xlogy": torch.special.xlogy, "xlog1py": torch.special.xlog1py,
    "add": torch.add,
}  # fmt: skip
_INEXACT = {F64: 1e-15, F32: 3e-7}  # of logarithms


def _step_cases() -> Iterator[Any]:
    for name, function in STEPS.items():
        logarithm = "log" in name
        for half in (F16, BF16):
            yield pytest.param(function, pairs(half, half), 0, id=f"{name} {half}")
            for other in INTS:
                yield pytest.param(function, pairs(half, other), 0, id=f"{name} {half} {other}")
                yield pytest.param(function, pairs(other, half), 0, id=f"{name} {other} {half}")
        for wide in (F32, F64):
            yield pytest.param(function, pairs(wide, wide), _INEXACT[wide] if logarithm else 0, id=f"{name} {wide}")


@pytest.mark.parametrize(("function", "inputs", "tolerance"), list(_step_cases()))
def test_pairs(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], tolerance: float) -> None:
    check(function, inputs, tolerance)


# One divisor is not rounded, and neither are the steps with it.
ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "floor of a number": lambda x: floor(x, 0.3), "trunc of a number": lambda x: trunc(x, 0.3),
    "floor divide": lambda x: x // 0.3, "floor of one element": lambda x: floor(x, torch.tensor(0.3)),
    "trunc of one element": lambda x: trunc(x, torch.tensor(0.3)), "number over": lambda x: floor(1000.1, x),
    "truncated number over": lambda x: trunc(1000.1, x), "remainder": lambda x: torch.remainder(x, -0.5),
    "fmod": lambda x: torch.fmod(x, -0.5), "remainder of": lambda x: torch.remainder(-7.5, x),
    "xlogy": lambda x: torch.xlogy(x, 1e10), "xlogy of": lambda x: torch.xlogy(1e-3, x),
    "xlog1py": lambda x: torch.special.xlog1py(x, 1e10), "xlog1py of": lambda x: torch.special.xlog1py(1e-3, x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("function", ONE.values(), ids=ONE)
def test_one_operand(function: Callable[..., Any], dtype: torch.dtype) -> None:
    check(function, (values(dtype).repeat(40),))


@pytest.mark.parametrize("count", [1, 2000])
@pytest.mark.parametrize("dtype", [F64, F32, F16, BF16], ids=str)
@pytest.mark.parametrize("function", [torch.remainder, torch.fmod])
def test_signs_of_zero(function: Callable[..., Any], dtype: torch.dtype, count: int) -> None:
    a = torch.tensor([0.0, -0.0, 4.0, -4.0, 0.0, -0.0, 4.0, -4.0, 5.0, -5.0], dtype=dtype).repeat(count)
    b = torch.tensor([2.0, 2.0, 2.0, 2.0, -2.0, -2.0, -2.0, -2.0, 3.0, -3.0], dtype=dtype).repeat(count)
    check(function, (a, b))


@pytest.mark.parametrize("function", [torch.logaddexp, torch.logaddexp2])
@pytest.mark.parametrize("half", [F16, BF16], ids=str)
def test_integers_of_logaddexp_are_rounded(function: Callable[..., Any], half: torch.dtype) -> None:
    check(function, (torch.tensor([256.0, 2048.0, 3.0], dtype=half), torch.tensor([257, 2049, 2])))


@pytest.mark.parametrize("value", [-1, -255])
def test_numbers_beyond_uint8_wrap(value: int) -> None:
    x = torch.arange(6, dtype=torch.uint8)
    check(lambda t: t.masked_fill(t > 2, value), (x,))
