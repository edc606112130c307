"""Special values as eager has them; the differences are a table, with `nan: fast` those that lose NaN too."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.cases.infinities import differences
from tests.support.cases.special_values import GROUPS, Expected, check, named
from tests.support.sampling import every

_VALUES = named(subnormal="over itself")
_SIGNS = named(moved="padded with -0")
EXPECTED = {
    "exact": Expected(
        values=_VALUES,
        signs=_SIGNS,
    ),
    "fast": Expected(
        values=_VALUES,
        lost=named(
            unary=(
                "clamp, clamp at 0, clamp from above, clamp from below, exp, hardsigmoid, hardtanh"
                ", relu, relu6, sgn, sign"
            ),
            binary="clamp between tensors, maximum, maximum of rows, minimum",
            reduced=(
                "amax along 0, amax along 1, amin along 0, amin along 1, aminmax along 0, aminmax along 1"
                ", log_softmax along 0, log_softmax along 1, logsumexp along 0, logsumexp along 1"
                ", masked softmax, max of all, min of all, norm -inf along 1, norm inf along 1"
                ", normalize along 1, softmax along 0, softmax along 1, softmin along 1"
            ),
            sorted=(
                "argmax along 0, argmax along 1, argmax of absolute along 1, argmin along 0"
                ", argmin along 1, argsort along 0, argsort along 1, max along 0, max along 1"
                ", max without indices along 1, min along 0"
                ", min along 1, sort along 0, sort along 1, sorted downwards along 0"
                ", sorted downwards along 1, the least along 1, topk along 1"
            ),
            layers=(
                "adaptive max pool, codebook, convolution and max pool, convolution and relu"
                ", convolution and relu6, global max pool, linear and relu, max pool"
                ", max pool behind relu, max pool in one dimension, max pool in three dimensions"
                ", padded max pool"
            ),
        ),
        signs=_SIGNS,
        some_cpus=named(  # with AVX-512, but not with AVX2
            binary="chosen",
            compared=(
                "ge, ge -inf, ge 0.0, ge 1.0, ge inf, ge nan, gt, gt -inf, gt 0.0, gt 1.0, gt inf, gt nan"
                ", masked_fill, masked_fill -0, where not negative"
            ),
            sorted="scattered amax, scattered amin, scattered mean, scattered prod, scattered sum",
        ),
        compound=frozenset({"argsort along 0", "argsort along 1", "masked_fill -0", "max pool in one dimension"}),
    ),
}


@pytest.mark.parametrize(("nan", "group"), [*every(4, ["exact"], GROUPS), *product(["fast"], GROUPS)])
def test_special_values(nan: str, group: str) -> None:
    check(group, "openvino", nan, EXPECTED[nan])


@pytest.mark.parametrize("nan", ["exact", "fast"])
def test_maxima_of_infinity_alone(nan: str) -> None:
    """Reductions and pools give the largest negative number."""
    pools = {f"max pool in {count} dimension{'s' * (count != 'one')}" for count in ("one", "three")}
    lost = {"amax", "amin", "max", "max of all", "norm", "max pool", "padded max pool", "global max pool"} | pools
    assert differences("openvino", nan) == (lost if nan == "fast" else set())
