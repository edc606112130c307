"""Numbers beside 16-bit floats: torch computes in float32 with the number as it is, and rounds the result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from delegate.testing import assert_same
from tests.support.cases.casts import lowered, ran
from tests.support.sampling import every

_NOISE = torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 3
# The results are equal bit by bit.
EQUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda x: x * 0.1,
    "product with an integer": lambda x: x * 1001,
    "sum": lambda x: x + 0.1,
    "difference": lambda x: 0.1 - x,
    "scaled sum": lambda x: torch.add(x, x.flip(0), alpha=0.7),
    "tensor of one element": lambda x: x * torch.tensor(0.1),
    "number of the same dtype": lambda x: x * torch.tensor(0.1, dtype=x.dtype),
    "leaky_relu": F.leaky_relu,
    "leaky_relu of a slope": lambda x: F.leaky_relu(x, 0.3),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.3),
    "log2": lambda x: x.abs().log2(),
    "log10": lambda x: x.abs().log10(),
    "compared": lambda x: x > 0.1,
    "clamp": lambda x: x.clamp(-0.1, 0.7),
    "threshold": lambda x: F.threshold(x, 0.1, 0.3),
    "variance": lambda x: x.reshape(40, 100).var(1),
    "deviation": lambda x: x.reshape(40, 100).std(1),
    "norm": lambda x: torch.linalg.vector_norm(x.reshape(40, 100), 3, 1),
    "returned to 16 bits": lambda x: (x.float() * 0.3).to(x.dtype),
}
FEW = 0.02  # of them are a step off: at ties, which float32 decides by its last digit


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", every(3, EQUAL))
def test_numbers_are_not_rounded(name: str, dtype: torch.dtype) -> None:
    """A third of the products were a step off in float16, and three quarters in bfloat16."""
    x = _NOISE.to(dtype)
    program = lowered(EQUAL[name], x, "openvino")
    assert "openvino" in ran(program)
    result, expected = program(x), EQUAL[name](x)
    assert_same(result, expected, torch.finfo(dtype).eps)
    assert (result != expected).float().mean() <= FEW


@pytest.mark.parametrize("divisor", [0.3, 3.0, torch.linspace(0.1, 7, 4000)], ids=["0.3", "3", "a constant"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_quotients(dtype: torch.dtype, divisor: float | Tensor) -> None:
    """OpenVINO multiplied by the reciprocal, rounded to 16 bits."""
    x, divisor = _NOISE.to(dtype), divisor.to(dtype) if isinstance(divisor, Tensor) else divisor
    program = lowered(lambda v: v / divisor, x, "openvino")
    assert ran(program) == {"openvino"}
    assert_same(program(x), x / divisor, torch.finfo(dtype).eps)
    assert (program(x) != x / divisor).float().mean() <= FEW


def test_casts_to_bfloat16_round_to_the_nearest() -> None:
    """They were cut off; infinities and the largest numbers stay what they are."""
    x = torch.tensor([1.0, -0.0, 3.0e38, -3.3895e38, float("inf"), -float("inf"), float("nan"), 1e34, 1e-30]).bfloat16()
    program = lowered(lambda v: (v.float() * 1.0).to(v.dtype), x, "openvino")
    assert ran(program) == {"openvino"}
    assert_same(program(x), x, 0, signed_zeros=True)
