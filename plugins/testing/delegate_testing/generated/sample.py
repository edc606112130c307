"""Samples: functions of tensors with generated attributes, inputs to run them on, and what draws shapes and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

Draw = Callable[[st.SearchStrategy[Any]], Any]
_FREE = 2  # the least size of a dimension that may be dynamic


class FunctionModule(nn.Module):
    """A module that calls a function of tensors and weights; the weights are constants of the program."""

    def __init__(self, function: Callable[..., Any], weights: Sequence[torch.Tensor], options: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.options = function, options
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *self.weights, **self.options)


@dataclass
class FunctionSample:
    """A function with its attributes and the shapes of its inputs.

    Args:
        name: the name of the function.
        function: called with the inputs, then the weights.
        shapes: the shapes of the inputs.
        weights: constants after the inputs.
        options: keyword arguments of the function.
        tied: groups of dimensions with one size, each ((input, dimension), ...); all of a group are dynamic, or none.
        grid: if the inputs are multiples of 1/4: some are equal, and 16 bits represent them exactly.
    """

    name: str
    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    weights: Sequence[torch.Tensor] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    tied: Sequence[tuple[tuple[int, int], ...]] = field(default_factory=list)
    dynamic: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    grid: bool = False

    def module(self) -> FunctionModule:
        """Return the function as a module."""
        return FunctionModule(self.function, self.weights, self.options).eval()

    def dynamic_shapes(self) -> Any:
        """Return the `dynamic_shapes` of torch.export; sizes are dynamic where the function allows it."""
        if not self.dynamic:
            return None
        dims: list[dict[int, Any]] = [{} for _ in self.shapes]
        for group in self.dynamic:
            for position, dim in group:
                dims[position][dim] = torch.export.Dim.AUTO
        return (tuple(dims),)  # for the single argument *inputs

    def calls(self) -> list[tuple[torch.Tensor, ...]]:
        """Return inputs of the example's sizes, then of the other sizes."""
        return [self._inputs(self.shapes), *(self._inputs(self._resize(new)) for new in self.sizes)]

    def _resize(self, sizes: list[int]) -> list[tuple[int, ...]]:
        shapes = [list(s) for s in self.shapes]
        for group, size in zip(self.dynamic, sizes, strict=True):
            for position, dim in group:
                shapes[position][dim] = size
        return [tuple(s) for s in shapes]

    def _inputs(self, shapes: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
        numbers = [torch.randn(s, generator=generator) for s in shapes]
        return tuple((x * 4).round() / 4 for x in numbers) if self.grid else tuple(numbers)

    def __repr__(self) -> str:
        weights = [tuple(w.shape) for w in self.weights]
        return f"{self.name}({self.shapes}, weights={weights}, {self.options}, {self.dynamic=}, {self.sizes=})"


@st.composite
def vary(draw: Draw, samples: st.SearchStrategy[FunctionSample], dynamic: bool = True) -> FunctionSample:
    """Draw samples, some with dynamic sizes and further sizes to call them with; inputs are smooth or on a grid."""
    sample: FunctionSample = draw(samples)
    sample.grid = draw(st.booleans()) or sample.grid
    if not dynamic or draw(st.booleans()):
        return sample
    tied = {place for group in sample.tied for place in group}
    single = [((i, d),) for i, shape in enumerate(sample.shapes) for d in range(len(shape)) if (i, d) not in tied]
    groups = [g for g in (*sample.tied, *single) if sample.shapes[g[0][0]][g[0][1]] >= _FREE]
    if not groups:
        return sample
    sample.dynamic = draw(st.lists(st.sampled_from(groups), min_size=1, max_size=3, unique=True))
    sizes = [sample.shapes[g[0][0]][g[0][1]] for g in sample.dynamic]
    other = [st.integers(max(_FREE, size - 3), size + 4) for size in sizes]
    sample.sizes = [list(s) for s in draw(st.lists(st.tuples(*other), min_size=1, max_size=3))]
    return sample


TRUTH = st.booleans()


def weight(*shape: int) -> torch.Tensor:
    """Return a weight with multiples of 1/8, the same for a shape at every call."""
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
