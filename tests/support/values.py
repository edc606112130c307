"""Inputs of programs of dynamic sizes, and sizes read from values."""

from __future__ import annotations

import math
from typing import Any

import torch


def numbers(*shape: int) -> torch.Tensor:
    """Return different floats from -1 to 1, the same in each call."""
    return torch.arange(float(math.prod(shape))).reshape(shape).sub(3).mul(0.37).sin()


def counts(*values: int) -> torch.Tensor:
    """Return a vector of integers."""
    return torch.tensor(values, dtype=torch.int64)


def checked_item(x: torch.Tensor, low: int, high: int) -> Any:
    """Return the number in a tensor, with checks of its bounds."""
    k = x.item()
    torch._check(k >= low)
    torch._check(k <= high)
    return k
