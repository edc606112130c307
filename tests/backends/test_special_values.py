"""Special values through the built-in backends; the plugins' tests have the same for theirs."""

from __future__ import annotations

import pytest
import torch

import delegate
from tests.support.availability import require
from tests.support.cases.special_values import GROUPS, INF, Expected, check, named
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_runs, assert_same

# (backend, value of its option `nan`) -> its differences, which docs/reference/known-differences.md sums up. A software
# GPU runs webgpu's, and cuda's are of TVM on the CPU.
_CUDA_VALUES = named(
    binary="remainder",
    subnormal="remainder 2",
)
_CUDA_SIGNS = named(
    unary="atanh, remainder 1.5, remainder 2, tanh",
)
EXPECTED = {
    ("xnnpack", "exact"): Expected(
        values=named(
            unary="exp, log, log10, log2, power 0.5, sqrt",
            compared="where constant",
            reduced="masked softmax",
            moved="tril",
            subnormal=("ceil, floor, log, log2, over 0, over itself, rsqrt, sqrt, times infinity"),
        ),
        signs=named(
            unary="sin",
            moved="padded with -0",
        ),
    ),
    ("xnnpack", "fast"): Expected(
        values=named(
            unary="exp, log, log10, log2, power 0.5, sqrt",
            compared="where constant",
            reduced="masked softmax",
            moved="tril",
            subnormal="ceil, floor, log, log2, over 0, over itself, rsqrt, sqrt, times infinity",
        ),
        lost=named(
            binary="maximum, maximum of rows, minimum",
            reduced=(
                "amax along 0, amax along 1, amin along 0, amin along 1, aminmax along 0, aminmax along 1"
                ", log_softmax along 0, log_softmax along 1, logsumexp along 0, logsumexp along 1"
                ", max of all, min of all, norm inf along 1"
            ),
            layers=(
                "adaptive pool, average pool, convolution and max pool"
                ", global max pool, max pool, max pool behind relu, max pool in one dimension"
                ", padded average pool, padded max pool"
            ),
        ),
        signs=named(
            unary="sin",
            moved="padded with -0",
        ),
        some_cpus=named(unary="logit", binary="xlogy"),
        compound=frozenset({"max pool in one dimension", "xlogy"}),
    ),
    ("cuda", "exact"): Expected(
        values=_CUDA_VALUES,
        signs=_CUDA_SIGNS,
    ),
    ("cuda", "fast"): Expected(
        values=_CUDA_VALUES,
        lost=named(
            reduced="amax along 0, amax along 1, amin along 0, amin along 1, aminmax along 0, aminmax along 1",
            sorted=("argmax along 0, argmax along 1, argmax of absolute along 1, argmin along 0, argmin along 1"),
            layers="bilinear, codebook, convolution and max pool, max pool behind relu, padded max pool",
        ),
        signs=_CUDA_SIGNS,
    ),
    ("webgpu", "exact"): Expected(),
    ("webgpu", "fast"): Expected(
        lost=named(
            unary=(
                "acosh, atanh, celu, clamp, cosh, elu, exp, exp2, expm1, hardsigmoid, hardtanh"
                ", log, log10, log1p, log2, logit, power 2.5, power of 2, relu, relu6, selu"
                ", sigmoid"
            ),
            binary="pow, xlogy",
            reduced=(
                "amax along 0, amax along 1, amin along 0, amin along 1, aminmax along 0, aminmax along 1"
                ", log_softmax along 0, log_softmax along 1"
                ", masked softmax, max of all, min of all, norm -inf along 1"
                ", norm inf along 1, softmax along 0, softmax along 1, softmin along 1"
            ),
            sorted=(
                "argmax along 0, argmax along 1, argmax of absolute along 1, argmin along 0"
                ", argmin along 1, max along 0"
                ", max along 1, max without indices along 1, min along 0, min along 1, the least along 1, topk along 1"
            ),
            layers=(
                "attention, bicubic, convolution and elu, convolution and max pool, convolution and relu"
                ", convolution and relu6, global max pool, linear and relu, lp pool, max pool"
                ", max pool behind relu, max pool in one dimension, max pool in three dimensions"
                ", padded max pool"
            ),
            subnormal=(
                "ceil, eq 0, floor, ge 0, gt 0, le 0, log, log2, logical_not, lt 0"
                ", ne 0, over 0, over itself, rsqrt, sign, sqrt, times infinity, truth"
                ", where positive"
            ),
        ),
        signs=named(
            unary=("erf, power 3, round, sin, sinh, tan, tanh"),
        ),
        compound=frozenset({"selu", "celu", "max pool in one dimension", "xlogy"}),
    ),
    ("portable", ""): Expected(),
}
_QUICK = {"cuda": {"compared", "sorted"}, "webgpu": {"compared", "sorted", "moved"}}  # lowered in about 10 s


def _cases():
    for (backend, nan), expected in EXPECTED.items():
        for group in GROUPS:
            is_slow = backend in _QUICK and (nan == "exact" or group not in _QUICK[backend])
            marks = [pytest.mark.slow] if is_slow else []
            yield pytest.param(backend, nan, group, expected, marks=marks, id=f"{backend}-{nan}-{group}")


@pytest.mark.parametrize(("backend", "nan", "group", "expected"), list(_cases()))
def test_special_values(backend, nan, group, expected):
    require(backend)
    check(group, backend, nan, expected)


def test_expected_cases_exist():
    for expected in EXPECTED.values():
        for table in (expected.values, expected.lost, expected.signs):
            assert all(names <= GROUPS[group].keys() for group, names in table.items())


def test_xnnpack_reports_where_it_keeps_nan():
    exported = torch.export.export(NamedFunction(lambda x: x.amax(1)).eval(), (torch.rand(2, 3),))
    (partition,) = delegate.to_backend(exported, "xnnpack").report.partitions
    assert "nan: exact, propagated in 1 place" in partition.notes


@pytest.mark.parametrize("function", [torch.sin, torch.cos])
def test_large_angles(function):
    """XNNPACK gives numbers in the hundreds for them."""
    x = torch.tensor([0.0, -3.0, 1e4, 2.0**19, -(2.0**27), 1e10, 3e38, INF])
    program = delegate.to_backend(torch.export.export(NamedFunction(function).eval(), (x,)), "xnnpack")
    assert_runs(program, "xnnpack")
    result = program(x)
    assert_same(result[:4], function(x[:4]))
    assert result[4:].isnan().all()
