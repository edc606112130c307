"""Operators with Python numbers on a backend: the differences from eager, and what the backend runs, are tables."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from tests.backends.number_operands import NAN, PROMOTED, Case, Number, cases_of, outcome, pairs_of
from tests.support.availability import require

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
