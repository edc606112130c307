"""Random numbers of rare distributions: their moments, their range, and the same numbers from the same seed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from delegate_kernels_extra.library import TABLE

from tests.support.kernels import run

aten = torch.ops.aten
LIKE = torch.empty(100, 200)
LOG_NORMAL = (math.exp(1 / 8), (math.exp(1 / 2) - math.exp(1 / 4)) ** 0.5)  # of exp of a normal number, deviation 1 / 2


def draw(op: Any, like: torch.Tensor, *args: float) -> torch.Tensor:
    TABLE.seed(0)
    (result,) = run(op, like, *args, expected=(like,))
    assert result is not None
    return result.double()


@pytest.mark.parametrize(
    ("op", "args", "moments", "least"),
    [
        (aten.geometric.default, (0.5,), (2.0, 2**0.5), 1.0),
        (aten.log_normal.default, (0.0, 0.5), LOG_NORMAL, 0.0),
    ],
)
def test_moments(op: Any, args: tuple[float, ...], moments: tuple[float, float], least: float) -> None:
    numbers = draw(op, LIKE, *args)
    assert torch.equal(numbers, draw(op, LIKE, *args))
    assert numbers.mean().item() == pytest.approx(moments[0], abs=0.05 * moments[1])
    assert numbers.std().item() == pytest.approx(moments[1], rel=0.05)
    assert numbers.min() >= least


def test_integers() -> None:
    assert draw(aten.geometric.default, LIKE.int(), 0.5).min() == 1


def test_cauchy() -> None:
    """Check that half of the numbers are within sigma of the median, because there are no moments."""
    result = draw(aten.cauchy.default, LIKE, 3.0, 2.0)
    assert result.median().item() == pytest.approx(3.0, abs=0.1)
    assert ((result > 1) & (result < 5)).double().mean().item() == pytest.approx(0.5, abs=0.02)
