"""Casts and signs as eager has them, and products to a scalar."""

from __future__ import annotations

import pytest
import torch

from tests.support.cases.casts import DTYPES, lowered, names, ran, taken
from tests.support.lowering import assert_same, refused
from tests.support.sampling import every

# With `nan: exact` no cast that rounds.
TAKEN = {
    torch.bool: "bfloat16 float16 float32",
    torch.float32: "bool",
    torch.float16: "bool float32",
    torch.bfloat16: "bool float32",
}


@pytest.mark.parametrize("dtype", every(2, DTYPES), ids=str)
def test_casts(dtype: torch.dtype) -> None:
    assert taken("openvino", dtype, {"nan": "exact"}) == names(TAKEN.get(dtype, ""))


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16], ids=str)
def test_the_default_drops_no_rounding(to: torch.dtype) -> None:
    x = torch.tensor([0.1, 7.6, 1 + 2**-11, 1 + 3 * 2**-8, 1e5, -0.0, 3.39e38])
    program = lowered(lambda v: v.to(to).float(), x, "openvino")
    assert refused(program, "openvino") == {"aten._to_copy.default": 1}  # the one that rounds
    assert torch.equal(program(x), x.to(to).float())


@pytest.mark.parametrize("equation", ["i,i->", "ij,ij->"])
def test_products_to_a_scalar(equation: str) -> None:
    x = torch.rand(*range(3, 2 + len(equation.partition(",")[0]) + 1))
    program = lowered(lambda a: torch.einsum(equation, a, a), x, "openvino")
    assert ran(program) == {"openvino"}
    assert_same(program(x), torch.einsum(equation, x, x), 1e-6)
