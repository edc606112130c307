"""Operators with Python numbers among their operands, for every dtype, through every backend, compared with eager.

The differences, and what a backend runs, are tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import delegate
from delegate.plugins import PORTABLE
from delegate.testing import assert_same
from tests.support.availability import require
from tests.support.cases.special_values import Case, Group

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)
Number = float | int | bool
_REALS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 0.1, -0.3, 1 / 3, 3.0, -7.0, 10.0, 20.5, -30.0, 88.0, 255.0, 256.0,
    -257.0, 2049.0, 1000.5,
)  # fmt: skip
_SPECIAL = (INF, -INF, NAN, 16.0)
_WHOLE = (
    0, 1, -1, 2, 5, 7, -7, 100, 127, -128, 255, 256, 257, -1000, 2**24, 2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31),
    2**31, 2**53 + 1, 2**63 - 1, -(2**63),
)  # fmt: skip


def values(dtype: torch.dtype, *, special: bool) -> Tensor:
    """Return an even number of values of a dtype; of floats, special ones are infinite or NaN."""
    if dtype is torch.bool:
        return torch.tensor([True, False, True, True])
    if dtype.is_floating_point:
        return torch.tensor((*_REALS, *(_SPECIAL if special else ())), dtype=torch.float64).to(dtype)
    held = torch.iinfo(dtype)
    x = torch.tensor([v for v in _WHOLE if held.min <= v <= held.max], dtype=dtype)
    return x[: len(x) // 2 * 2]


Operator = Callable[[Tensor, Tensor, Tensor, Any], Any]  # of values, their reverse, a mask, and a number


def _square(x: Tensor) -> Tensor:
    return x[:4].reshape(2, 2)


def _like(x: Tensor, number: Number) -> Tensor:
    return torch.tensor(number, dtype=x.dtype)


OPERATORS: Mapping[str, Operator] = {
    "add": lambda x, y, m, k: x + k,
    "add scaled": lambda x, y, m, k: torch.add(x, y, alpha=k),
    "sub": lambda x, y, m, k: x - k,
    "sub scaled": lambda x, y, m, k: torch.sub(x, y, alpha=k),
    "rsub": lambda x, y, m, k: k - x,
    "rsub scaled": lambda x, y, m, k: torch.rsub(x, 2, alpha=k),
    "mul": lambda x, y, m, k: x * k,
    "div": lambda x, y, m, k: x / k,
    "over": lambda x, y, m, k: k / x,
    "floor_divide": lambda x, y, m, k: x // k,
    "floor over": lambda x, y, m, k: k // x,
    "divided towards 0": lambda x, y, m, k: torch.div(x, k, rounding_mode="trunc"),
    "remainder": lambda x, y, m, k: torch.remainder(x, k),
    "remainder of": lambda x, y, m, k: torch.remainder(k, x),
    "fmod": lambda x, y, m, k: torch.fmod(x, k),
    "pow": lambda x, y, m, k: x**k,
    "power of": lambda x, y, m, k: k**x,
    "eq": lambda x, y, m, k: x == k,
    "ne": lambda x, y, m, k: x != k,
    "lt": lambda x, y, m, k: x < k,
    "le": lambda x, y, m, k: x <= k,
    "gt": lambda x, y, m, k: x > k,
    "ge": lambda x, y, m, k: x >= k,
    "where": lambda x, y, m, k: torch.where(m, x, k),
    "where not": lambda x, y, m, k: torch.where(m, k, x),
    "where numbers": lambda x, y, m, k: torch.where(m, k, 2) + x,
    "masked_fill": lambda x, y, m, k: x.masked_fill(m, k),
    "masked_fill constant": lambda x, y, m, k: x.masked_fill(torch.arange(len(x)) % 3 == 0, k),
    "clamp_min": lambda x, y, m, k: x.clamp(min=k),
    "clamp_max": lambda x, y, m, k: x.clamp(max=k),
    "clamp from": lambda x, y, m, k: x.clamp(k, 2),
    "clamp to": lambda x, y, m, k: x.clamp(-1, k),
    "maximum": lambda x, y, m, k: torch.maximum(x, torch.tensor(k)),
    "minimum": lambda x, y, m, k: torch.minimum(x, torch.tensor(k)),
    "maximum alike": lambda x, y, m, k: torch.maximum(x, _like(x, k).expand(len(x))),
    "fmax": lambda x, y, m, k: torch.fmax(x, _like(x, k)),
    "fill": lambda x, y, m, k: torch.fill(x, k),
    "full": lambda x, y, m, k: torch.full((len(x),), k) + x,
    "full of dtype": lambda x, y, m, k: torch.full((len(x),), k, dtype=x.dtype) + x,
    "full_like": lambda x, y, m, k: torch.full_like(x, k) + x,
    "new_full": lambda x, y, m, k: x.new_full((len(x),), k) * x,
    "scalar_tensor": lambda x, y, m, k: torch.scalar_tensor(k) * x,
    "tensor": lambda x, y, m, k: x * torch.tensor([k]),
    "arange": lambda x, y, m, k: x[:3] + torch.arange(3) * k,
    "cumsum": lambda x, y, m, k: (x[:6] + k).cumsum(0),
    "sum": lambda x, y, m, k: (x[:6] + k).sum(),
    "mean": lambda x, y, m, k: (x[:6] * k).mean(),
    "amax": lambda x, y, m, k: (x - k).amax(),
    "isin": lambda x, y, m, k: torch.isin(x, torch.tensor([k])),
    "isclose": lambda x, y, m, k: torch.isclose(x, y, atol=k),
    "isclose relative": lambda x, y, m, k: torch.isclose(x, y, rtol=k),
    "leaky_relu": lambda x, y, m, k: F.leaky_relu(x, k),
    "prelu": lambda x, y, m, k: F.prelu(x, _like(x, k).reshape(1)),
    "elu": lambda x, y, m, k: F.elu(x, k),
    "scaled elu": lambda x, y, m, k: torch.ops.aten.elu(x, 1.5, k, 0.5),
    "inner elu": lambda x, y, m, k: torch.ops.aten.elu(x, 1.5, 1, k),
    "celu": lambda x, y, m, k: F.celu(x, k),
    "softplus": lambda x, y, m, k: F.softplus(x, k),
    "softplus beyond": lambda x, y, m, k: F.softplus(x, 1, k),
    "threshold": lambda x, y, m, k: F.threshold(x, k, 2),
    "threshold to": lambda x, y, m, k: F.threshold(x, 1, k),
    "hardtanh": lambda x, y, m, k: F.hardtanh(x, -1, k),
    "hardtanh from": lambda x, y, m, k: F.hardtanh(x, k, 2),
    "hardshrink": lambda x, y, m, k: F.hardshrink(x, k),
    "softshrink": lambda x, y, m, k: F.softshrink(x, k),
    "addcmul": lambda x, y, m, k: torch.addcmul(x, x, y, value=k),
    "addcdiv": lambda x, y, m, k: torch.addcdiv(x, x, y, value=k),
    "lerp": lambda x, y, m, k: torch.lerp(x, y, k),
    "addmm": lambda x, y, m, k: torch.addmm(_square(y), _square(x), _square(x), beta=k),
    "addmm scaled": lambda x, y, m, k: torch.addmm(_square(x), _square(x), _square(x), alpha=k),
    "baddbmm": lambda x, y, m, k: torch.baddbmm(_square(y)[None], _square(x)[None], _square(x)[None], beta=k),
    "baddbmm scaled": lambda x, y, m, k: torch.baddbmm(_square(y)[None], _square(x)[None], _square(x)[None], alpha=k),
    "addmv": lambda x, y, m, k: torch.addmv(y[:2], _square(x), x[:2], beta=k),
    "addbmm": lambda x, y, m, k: torch.addbmm(_square(y), _square(x)[None], _square(x)[None], beta=k),
    "addr": lambda x, y, m, k: torch.addr(_square(y), x[:2], x[:2], beta=k),
    "pad": lambda x, y, m, k: F.pad(x, (1, 2), value=k),
    "scatter": lambda x, y, m, k: x.scatter(0, m.long(), k),
    "index_fill": lambda x, y, m, k: x.index_fill(0, torch.tensor([0, 2]), k),
    "nan_to_num": lambda x, y, m, k: torch.nan_to_num(x, k),
    "nan_to_num of infinity": lambda x, y, m, k: torch.nan_to_num(x, 0.5, k, 2.0),
    "xlogy": lambda x, y, m, k: torch.xlogy(x, k),
    "xlogy of": lambda x, y, m, k: torch.xlogy(k, x.abs()),
    "logit": lambda x, y, m, k: torch.logit(x, k),
    "copysign": lambda x, y, m, k: torch.copysign(x, k),
    "heaviside": lambda x, y, m, k: torch.heaviside(x, _like(x, k)),
    "norm": lambda x, y, m, k: torch.linalg.vector_norm(x[:6], k),
    "layer_norm": lambda x, y, m, k: F.layer_norm(x[:6], (6,), eps=k),
    "rms_norm": lambda x, y, m, k: F.rms_norm(x[:6], (6,), eps=k),
    "group_norm": lambda x, y, m, k: F.group_norm(x[None, :4], 2, eps=k),
    "normalize": lambda x, y, m, k: F.normalize(x[:6], dim=0, eps=k),
    "attention": lambda x, y, m, k: F.scaled_dot_product_attention(*[_square(x)[None, None]] * 3, scale=k),
    "bitwise_and": lambda x, y, m, k: x & k,
    "bitwise_or": lambda x, y, m, k: x | k,
    "bitwise_xor": lambda x, y, m, k: x ^ k,
    "left shift": lambda x, y, m, k: x << k,
    "right shift": lambda x, y, m, k: x >> k,
}

# Of two tensors whose dtypes differ.
PROMOTED: Mapping[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "add": lambda x, y, m: x + y,
    "add scaled": lambda x, y, m: torch.add(x, y, alpha=2),
    "sub": lambda x, y, m: x - y,
    "mul": lambda x, y, m: x * y,
    "div": lambda x, y, m: x / y,
    "floor_divide": lambda x, y, m: x // y,
    "remainder": lambda x, y, m: x % y,
    "fmod": lambda x, y, m: torch.fmod(x, y),
    "pow": lambda x, y, m: x**y,
    "eq": lambda x, y, m: x == y,
    "ne": lambda x, y, m: x != y,
    "lt": lambda x, y, m: x < y,
    "ge": lambda x, y, m: x >= y,
    "where": lambda x, y, m: torch.where(m, x, y),
    "maximum": lambda x, y, m: torch.maximum(x, y),
    "minimum": lambda x, y, m: torch.minimum(x, y),
    "cat": lambda x, y, m: torch.cat([x, y]),
    "clamp": lambda x, y, m: torch.clamp(x, min=y),
    "one element": lambda x, y, m: x + y[:1].reshape(()),
    "times one element": lambda x, y, m: x * y[:1].reshape(()),
    "less than one element": lambda x, y, m: x < y[2:3].reshape(()),
    "masked_fill": lambda x, y, m: x.masked_fill(m, y[2:3].reshape(())),
    "addcmul": lambda x, y, m: torch.addcmul(x, x, y),
    "lerp": lambda x, y, m: torch.lerp(x, x, y),
    "logical_and": lambda x, y, m: torch.logical_and(x, y),
    "bitwise_and": lambda x, y, m: x & y,
    "copysign": lambda x, y, m: torch.copysign(x, y),
    "atan2": lambda x, y, m: torch.atan2(x, y),
    "isclose": lambda x, y, m: torch.isclose(x, y),
    "index_put": lambda x, y, m: x.index_put((torch.tensor([0, 1]),), y[:2].to(x.dtype)),
}


# Operators of which zeros come of rounding, or whose signs IEEE 754 leaves open. XNNPACK's ELU returns -0.0
# for -0.0 with AVX-512, and 0.0 with AVX2.
_OPEN_ZEROS = frozenset({
    "elu", "scaled elu", "inner elu", "celu",
    "clamp_min", "clamp_max", "clamp from", "clamp to", "maximum", "minimum", "maximum alike", "fmax", "hardtanh",
    "hardtanh from", "amax", "layer_norm", "rms_norm", "group_norm", "addmm", "addmm scaled", "baddbmm",
    "baddbmm scaled", "addmv", "addbmm", "addr", "sum", "mean", "cumsum", "attention", "norm", "normalize",
})  # fmt: skip
_TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of 2 to 4 steps; torch rounds differently within operators


def cases_of(dtype: torch.dtype, numbers: Iterable[Number], special: bool) -> dict[str, Case]:
    """Return the operators with each of the numbers that torch accepts, named e.g. "add 0.1"."""
    x = values(dtype, special=special)
    inputs = (x, x.flip(0).clone(), torch.arange(len(x)) % 2 == 0)
    found = {}
    for number in numbers:
        for name, operator in OPERATORS.items():
            case = Case(lambda x, y, m, f=operator, k=number: f(x, y, m, k), inputs, name not in _OPEN_ZEROS)
            if _accepts(case):
                found[f"{name} {number!r}"] = case
    return found


def pairs_of(dtype: torch.dtype, special: bool) -> dict[str, Case]:
    """Return the operators of two tensors, one of a dtype and one of each other dtype, that torch accepts."""
    found = {}
    for other in (d for d in DTYPES if d is not dtype):
        x, y = values(dtype, special=special), values(other, special=special)
        size = min(len(x), len(y))
        inputs = (x[:size].clone(), y[-size:].flip(0).clone(), torch.arange(size) % 2 == 0)
        for name, operator in PROMOTED.items():
            if _accepts(case := Case(operator, inputs)):
                found[f"{name} {str(other).removeprefix('torch.')}"] = case
    return found


def _accepts(case: Case) -> bool:
    try:
        case.function(*case.inputs)
    except (RuntimeError, TypeError, ValueError, OverflowError, ZeroDivisionError):
        return False
    return True


@dataclass(frozen=True)
class Outcome:
    """Results of cases on a backend.

    Args:
        different: case -> its first difference from eager.
        ran: the cases of which the backend runs every node.
    """

    different: Mapping[str, str]
    ran: frozenset[str]


def outcome(cases: Mapping[str, Case], backend: str, options: Mapping[str, Any], *, exact: bool = False) -> Outcome:
    """Run cases in one program on a backend, "portable" being none, and compare each with eager.

    `exact` allows one step of the dtype in place of a few.
    """
    module = Group(cases).eval()
    inputs = tuple(module.distinct)
    backends = [] if backend == PORTABLE else [{"name": backend, "options": dict(options)}]
    config = {"backends": backends, "partitioning": {"min_partition_size": 0}}
    program = delegate.to_backend(torch.export.export(module, inputs), config=config)
    different = {}
    for (name, case), actual, expected in zip(cases.items(), program(*inputs), module(*inputs), strict=True):
        tolerance = (
            torch.finfo(expected.dtype).eps
            if exact and expected.is_floating_point()
            else _TOLERANCE.get(expected.dtype, 1e-5)
        )
        try:
            assert_same(actual, expected, tolerance, each=True, at_least=1e-3, signed_zeros=case.zeros)
        except AssertionError as error:
            different[name] = str(error)
    on: dict[str, set[bool]] = {}
    for node in program.report.nodes:
        name = list(cases)[int(node.module.split(".")[1].removeprefix("case"))]
        on.setdefault(name, set()).add(node.backend == backend)
    return Outcome(different, frozenset(name for name, own in on.items() if own == {True}))


OPTIONS: Mapping[str, Mapping[str, str]] = {"xnnpack": {"nan": "exact"}}
SLOW: tuple[Number, ...] = (0.1, -0.5, 1e10, 2, 2**24 + 1, NAN)


def names(text: str) -> set[str]:
    """Return names of cases or operators, e.g. "add 0.1, sub 2"."""
    return set(filter(None, text.split(", ")))


_XNNPACK = names(
    "add, add scaled, sub, sub scaled, rsub, rsub scaled, mul, div, over, masked_fill constant, clamp_min, clamp_max, "
    "clamp from, clamp to, maximum alike, full of dtype, full_like, new_full, scalar_tensor, sum, mean, amax, "
    "leaky_relu, prelu, elu, scaled elu, inner elu, softplus, hardtanh, hardtanh from, addcmul, addcdiv, lerp, "
    "addmm, addmm scaled, baddbmm, baddbmm scaled, addr, layer_norm, rms_norm, group_norm, normalize, "
    "attention"
)
# (backend, dtype) -> the operators that it runs with 0.1 and 2, besides single cases.
RAN = {
    ("xnnpack", torch.float32): (
        _XNNPACK,
        names("pow 2, maximum 0.1, minimum 0.1, full 0.1, tensor 0.1, arange 0.1, norm 2"),
    ),
    ("xnnpack", torch.float16): (
        _XNNPACK,
        names(
            "pow 2, maximum 0.1, maximum 2, minimum 0.1, minimum 2, full 0.1, full 2, tensor 0.1, "
            "arange 0.1, arange 2, norm 2"
        ),
    ),
}  # fmt: skip
# (backend, dtype) -> the cases that differ from eager with 0.1 and 2: signs of zero, and NaN that XNNPACK's constant
# masks keep. The decomposition of rsub rounds the product of float16.
DIFFERENT = {
    ("xnnpack", torch.float32): names("masked_fill constant 0.1, masked_fill constant 2"),
    ("xnnpack", torch.float16): names(
        "rsub scaled 0.1, masked_fill constant 0.1, softshrink 0.1, masked_fill constant 2, softshrink 2"
    ),
    ("portable", torch.float16): names("rsub scaled 0.1, softshrink 0.1, softshrink 2"),
    ("portable", torch.int32): set(),
}
# The same of portable kernels with the numbers of SLOW. Torch's attention gives 0 for rows of NaN.
DIFFERENT_SLOW = {
    torch.float32: names("softshrink 10000000000.0, pow 16777217, softshrink 16777217, attention nan"),
    torch.bfloat16: names(
        "rsub scaled 0.1, softshrink 0.1, softshrink 10000000000.0, softshrink 2, softshrink 16777217, attention nan"
    ),
    torch.int64: set(),
    torch.int8: set(),
}


@pytest.mark.parametrize(("backend", "dtype"), DIFFERENT, ids=str)
def test_numbers(backend, dtype):
    require(backend)
    cases = cases_of(dtype, (0.1, 2), special=True)
    found = outcome(cases, backend, OPTIONS.get(backend, {}))
    assert found.different.keys() == DIFFERENT[backend, dtype], found.different
    if backend == "portable":
        return
    operators, single = RAN[backend, dtype]
    assert found.ran == {name for name in cases if name.rpartition(" ")[0] in operators} | single


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DIFFERENT_SLOW, ids=str)
def test_numbers_of_all_kinds(dtype):
    found = outcome(cases_of(dtype, SLOW, special=True), "portable", {})
    assert found.different.keys() == DIFFERENT_SLOW[dtype], found.different


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool], ids=str)
def test_pairs_of_dtypes(dtype):
    found = outcome(pairs_of(dtype, special=True), "portable", {})
    assert not found.different


# Torch rounds the integers 257 and 2049 to the 16-bit float, then computes. Libraries would keep their digits.
ROUNDED_FIRST = (
    "add", "sub", "mul", "div", "remainder", "fmod", "pow", "eq", "ne", "lt", "ge", "where", "maximum", "minimum",
    "clamp", "one element", "less than one element", "addcmul", "atan2", "copysign",
)  # fmt: skip


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_integers_beside_half_precision_are_rounded_first(backend, half):
    a = torch.tensor([257, 2049, -259, 3, 1000, 2051])
    b, mask = torch.tensor([256.0, 2048, 1.5, 0.5, 3, 7], dtype=half), torch.tensor([True, False] * 3)
    names_of = [name for name in ROUNDED_FIRST if name not in ("clamp", "addcmul")]  # these require the float first
    cases = {f"{n} integers": Case(PROMOTED[n], (a, b, mask)) for n in names_of}
    cases |= {f"{n} floats": Case(PROMOTED[n], (b, a, mask)) for n in ROUNDED_FIRST}
    assert not outcome(cases, backend, {}, exact=True).different
