"""Functions that draw shapes, dimensions and weights for strategies."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from delegate.testing.generated.sample import Draw

TRUTH = st.booleans()


def weight(*shape: int) -> torch.Tensor:
    """Return a weight of multiples of 1/8, the same for a shape at every call."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (numbers * 8).round() / 8


def each(draw: Draw, count: int, values: st.SearchStrategy[int]) -> tuple[int, ...]:
    return tuple(draw(values) for _ in range(count))


def image(draw: Draw, dims: int, low: int = 4, high: int = 9, channels: int | None = None) -> tuple[int, ...]:
    sizes = each(draw, dims, st.integers(low, high))
    return (draw(st.integers(1, 3)), draw(st.integers(1, 4)) if channels is None else channels, *sizes)


def shape_of(draw: Draw, low: int = 1, high: int = 4) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, 5), min_size=low, max_size=high)))


def dim_of(draw: Draw, rank: int) -> int:
    dim: int = draw(st.integers(-rank, rank - 1))
    return dim
