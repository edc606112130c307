"""NaN, infinities and values beyond the range in quantizers: one rule for portable kernels, another for libraries."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import delegate
from delegate.quantization import quantize
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_runs, assert_same
from tests.support.quantized import settings_of

NAN, INF = math.nan, math.inf
qd = torch.ops.quantized_decomposed
SPECIAL = [NAN, INF, -INF, 1e10, -1e30, 3e38]


def _known(x: torch.Tensor) -> torch.Tensor:
    return qd.dequantize_per_tensor(
        qd.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8), 0.1, 3, -128, 127, torch.int8
    )


def _integers(x: torch.Tensor) -> torch.Tensor:
    return qd.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8).float()


def _chosen(x: torch.Tensor) -> torch.Tensor:
    scale, zero = qd.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
    integers = qd.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
    return qd.dequantize_per_tensor.tensor(integers, scale, zero, -128, 127, torch.int8)


def _of_rows(x: torch.Tensor) -> torch.Tensor:
    scale, zero = qd.choose_qparams_per_token_asymmetric(x, torch.int8)
    integers = qd.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
    return qd.dequantize_per_token(integers, scale, zero, -128, 127, torch.int8, torch.float32)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("function", [_known, _integers, _chosen, _of_rows])
def test_kernels_do_what_eager_does(function, value):
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    program = delegate.to_backend(torch.export.export(NamedFunction(function).eval(), (x,)), [])
    x[1, 2] = value
    assert_same(*(torch.where(y.isfinite(), y, NAN) for y in (program(x), function(x))), 1e-6)


@pytest.mark.parametrize("value", [INF, -INF, 1e10, -1e30])
def test_a_known_range_bounds_large_values(value):
    x = torch.randn(2, 8)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    static = quantize(torch.export.export(module, (x,)), settings_of("xnnpack"), [torch.randn(2, 8) for _ in range(4)])
    program = delegate.to_backend(static, "xnnpack")
    assert_runs(program, "xnnpack")
    x[0, 1] = value
    assert_same(program(x), static.module()(x), 0.05)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nan_and_infinity_make_a_chosen_range_nan(value):
    x = torch.randn(2, 8)
    exported = torch.export.export(nn.Sequential(nn.Linear(8, 4)).eval(), (x,))
    dynamic = quantize(exported, settings_of("xnnpack", "dynamic_int8"))
    program = delegate.to_backend(dynamic, [])
    x[0, 1] = value
    assert program(x).isnan().all()
    assert dynamic.module()(x).isnan().all()
