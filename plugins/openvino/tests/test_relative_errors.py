"""Small results and results close to 0 keep their digits."""

from __future__ import annotations

import numpy as np
import openvino
import pytest
import torch
from delegate_openvino.digits import keep_digits
from openvino import opset13 as opset

import delegate
from delegate.testing import assert_same
from tests.support.cases.relative_errors import CASES, compare
from tests.support.functions import Function

# Left to others, wholly or in part: OpenVINO has no formula that keeps the digits, or no such operator.
_OTHERS = ("erfc", "erfinv", "expm1", "log1p", "logaddexp", "logsigmoid", "softplus", "softplus, beta")
_LEFT = frozenset({*_OTHERS, "softplus, negative beta"})


@pytest.mark.parametrize("name", CASES)
def test_relative_error(name: str) -> None:
    assert ("portable" in compare(name, ["openvino"])) == (name in _LEFT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["elu", "selu", "celu", "erf", "mish"])
def test_16_bits(name: str, dtype: torch.dtype) -> None:
    function, _, _ = CASES[name]
    sizes = torch.logspace(-37, 1, 2000) if dtype is torch.bfloat16 else torch.logspace(-4, 1, 2000)
    x = torch.cat([sizes, -sizes]).to(dtype)
    program = delegate.to_backend(torch.export.export(Function(function), (x,)), ["openvino"])
    assert {n.backend for n in program.report.nodes} == {"openvino"}
    exact = function(x.double()).to(dtype)
    assert_same(program(x), exact, torch.finfo(dtype).eps, each=True, at_least=torch.finfo(dtype).tiny)


@pytest.mark.parametrize("is_sum", [True, False], ids=["GELU", "erf"])
def test_an_error_function_within_gelu_stays_as_it_is(is_sum: bool) -> None:
    """OpenVINO finds x (1 + erf(x / sqrt(2))) / 2 and fuses it."""
    x = opset.parameter([4], np.float32)
    result = opset.erf(x)
    model = openvino.Model([opset.add(result, np.float32(1)) if is_sum else result], [x])
    keep_digits(model)
    assert ("Select" in {op.get_type_name() for op in model.get_ops()}) != is_sum
