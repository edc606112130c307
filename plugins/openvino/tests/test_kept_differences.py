"""Differences from torch that this backend keeps are as their rows of deviations describe them."""

from __future__ import annotations

import pytest
import torch

import delegate
from tests.support.cases.kept_differences import INF, NAN, check, sampled_affine
from tests.support.functions import Function
from tests.support.lowering import assert_runs, assert_same, relative_error

EXPECTED: dict[str, tuple[list[float], list[float]]] = {
    "var_mean": ([NAN, INF], [NAN, NAN]),
    "rows that see nothing": ([0.0, NAN], [NAN, NAN]),
    "sampled at NaN": ([NAN], [2.0]),
    "sampled at infinity": ([NAN], [3.0]),
    "positions": ([1, 2], [1, 5]),
    "hardswish": ([-1.7881391, -3333333.25], [-2.3841853, -3333333.5]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_difference(name: str) -> None:
    check(name, "openvino", *EXPECTED[name])


def test_pixels_of_a_computed_grid_differ_at_halves_only() -> None:
    assert sampled_affine("openvino", 0.5) == 0
    assert sampled_affine("openvino", 2.0) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [64, 1000, 5000])
@pytest.mark.parametrize("is_explicit", [False, True], ids=["", "with its dtype"])
def test_running_sums_of_16_bits(is_explicit: bool, count: int, dtype: torch.dtype) -> None:
    x = (torch.rand(2, count, generator=torch.Generator().manual_seed(0)) / 8).to(dtype)
    program = delegate.to_backend(
        torch.export.export(Function(torch.cumsum, -1, dtype=dtype if is_explicit else None), (x,)), "openvino"
    )
    assert_runs(program, "openvino")
    assert_same(program(x).double(), x.double().cumsum(-1), 2 * torch.finfo(dtype).eps, each=True)


def test_scores_of_attention_in_bfloat16_are_rounded() -> None:
    """The error equals the error of separate products and softmax, about 7 times as large as torch's attention has."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 64, 32, generator=generator).bfloat16() for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    program = delegate.to_backend(torch.export.export(Function(attend), (q * 4, k, v)), "openvino")
    assert_runs(program, "openvino")
    exact = attend(*(x.double() for x in (q * 4, k, v)))
    own, separate = attend(q * 4, k, v), ((q * 4 @ k.mT) * 32**-0.5).softmax(-1) @ v
    errors = [relative_error(x.double(), exact) for x in (own, program(q * 4, k, v), separate)]
    assert 2 * errors[0] < errors[1] < 2 * errors[2]
