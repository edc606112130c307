"""Operators in integers, against the quantized program in eager: generated scales, zero points, sizes and windows."""

from __future__ import annotations

import pytest
import torch

import delegate
from tests.support.cases.integer_operators import OPS, case
from tests.support.lowering import assert_same, steps_of
from tests.support.quantized import floats_within, require_whole
from tests.support.sampling import every


def require_within_steps(got: torch.Tensor, expected: torch.Tensor, scale: float, steps: int) -> None:
    """Check that results are on the grid of their scale, and differ by a limited number of steps."""
    assert_same(steps_of(got, scale), steps_of(expected, scale), steps=steps)


@pytest.mark.parametrize(("name", "seed"), every(13, [n for n in OPS if n != "pad with a number"], range(6)))
def test_as_in_eager(name: str, seed: int) -> None:
    module, values, result = case(name, seed)
    program = delegate.to_backend(torch.export.export(module.eval(), tuple(values)), "xnnpack")
    require_whole(program)
    require_within_steps(program(*values), module(*values).detach(), result.scale, OPS[name].steps)
    if seed % 3 != 2:  # with an observer's parameters every operator that XNNPACK has in integers is in integers
        assert OPS[name].floats in (None, bool(floats_within(program))), floats_within(program)


@pytest.mark.parametrize("name", ["conv", "linear", "add", "cat", "max pool", "sigmoid", "mean"])
def test_uint8(name: str) -> None:
    module, values, result = case(name, 1, torch.uint8)
    program = delegate.to_backend(torch.export.export(module.eval(), tuple(values)), "xnnpack")
    require_whole(program)
    assert not floats_within(program)
    require_within_steps(program(*values), module(*values).detach(), result.scale, OPS[name].steps)
