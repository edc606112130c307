"""Special values as eager has them; the differences are a table, with `nan: fast` those that lose NaN too."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.cases.infinities import differences
from tests.support.cases.special_values import GROUPS, Expected, check, named
from tests.support.sampling import every

_VALUES = named(
    layers="bicubic",
)
_SIGNS = named(
    unary=(
        "expm1, floor of a quotient, log1p, nan_to_num, nan_to_num of numbers, remainder 1.5"
        ", remainder 2, trunc, trunc of a quotient"
    ),
    binary="chosen, floor_divide, lerp, prelu of each, remainder, truncated quotient, xlogy",
    compared="masked_fill -0, where constant, where not negative",
    moved="tril",
    subnormal="floor of a quotient, remainder 2, trunc",
)
EXPECTED = {
    "exact": Expected(
        values=_VALUES,
        signs=_SIGNS,
    ),
    "fast": Expected(
        values=_VALUES,
        lost=named(
            unary="sgn, sign",
            reduced=(
                "amax along 0, amax along 1, amin along 0, amin along 1, aminmax along 0, aminmax along 1"
                ", max of all, min of all, norm -inf along 1, norm inf along 1"
            ),
            sorted=(
                "argmax along 0, argmax along 1, argmax of absolute along 1, argmin along 0, argmin along 1"
                ", max along 0, max along 1, max without indices along 1, min along 0, min along 1"
            ),
            layers=("convolution and max pool, global max pool, max pool behind relu, padded max pool, sampled at NaN"),
        ),
        signs=_SIGNS,
        some_cpus=named(  # from ONNX Runtime 1.32 on, TopK orders NaN as torch does
            sorted=(
                "argsort along 0, argsort along 1, sort along 0, sort along 1"
                ", sorted downwards along 0, sorted downwards along 1, the least along 1, topk along 1"
            ),
        ),
    ),
}


@pytest.mark.parametrize(("nan", "group"), [*every(4, ["exact"], GROUPS), *product(["fast"], GROUPS)])
def test_special_values(nan: str, group: str) -> None:
    check(group, "onnxruntime", nan, EXPECTED[nan])


@pytest.mark.parametrize("nan", ["exact", "fast"])
def test_maxima_of_infinity_alone(nan: str) -> None:
    """Pools that are padded, or of three dimensions, give the largest negative number."""
    expected = {"padded max pool", "max pool in three dimensions"} if nan == "fast" else set()
    assert differences("onnxruntime", nan) == expected
