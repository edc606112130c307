"""Samples of programs with several operators, for partitions of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from delegate.testing.generated.sample import Draw, FunctionSample, each, weight

# Functions of two matrices of one shape and a square constant; the result has the same shape and small numbers.
# All are continuous: a small rounding difference of a device stays small.
STEPS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "add": lambda x, y, w: (x + y) / 2,
    "mul": lambda x, y, w: torch.tanh(x) * y,
    "maximum": lambda x, y, w: torch.maximum(x, y),
    "where": lambda x, y, w: torch.where(x > y, x, y),
    "masked": lambda x, y, w: (x > 0).to(x.dtype) * x,
    "relu": lambda x, y, w: torch.relu(x),
    "gelu": lambda x, y, w: torch.nn.functional.gelu(x),
    "broadcast": lambda x, y, w: x - y.mean(1, keepdim=True),
    "column": lambda x, y, w: torch.sigmoid(x[:, :1]) * y,
    "softmax": lambda x, y, w: torch.softmax(x, -1) + y[:1],
    "norm": lambda x, y, w: torch.nn.functional.layer_norm(x, w.shape[-1:], w[0], eps=0.1),
    "linear": lambda x, y, w: torch.tanh(torch.nn.functional.linear(x, w, w[0])),
    "products": lambda x, y, w: torch.tanh(x @ (y.t() @ x)),
    "joined": lambda x, y, w: torch.cat([x, y], 1)[:, ::2],
    "split": lambda x, y, w: torch.cat(torch.split(x, 1, 1)[::-1], 1),
    "turned": lambda x, y, w: x.reshape(-1).view(x.shape[1], x.shape[0]).t(),
    "flipped": lambda x, y, w: x.flip(1) + y,
    "a constant": lambda x, y, w: x * w[0] + w.sum(),
}


def _program(*inputs: Tensor, steps: Sequence[tuple[str, int, int]], results: Sequence[int]) -> tuple[Tensor, ...]:
    *values, constant = inputs
    for name, first, second in steps:
        values.append(STEPS[name](values[first], values[second], constant))
    return tuple(values[i] for i in results)


@st.composite
def programs(draw: Draw) -> FunctionSample:
    """Draw programs of two to nine steps, each on any two earlier values.

    One to three values are results; a result may be an input or occur twice.
    """
    rows, columns = each(draw, 2, st.integers(2, 5))
    count = draw(st.integers(1, 2))
    steps: list[tuple[str, int, int]] = []
    for number in range(count, count + draw(st.integers(2, 9))):
        operands: Any = st.integers(0, number - 1)
        steps.append((draw(st.sampled_from(sorted(STEPS))), draw(operands), draw(operands)))
    last = count + len(steps) - 1
    results = [last, *draw(st.lists(st.integers(0, last), max_size=2))]
    tied = [tuple((i, 0) for i in range(count))]
    options = {"steps": steps, "results": results}
    return FunctionSample("program", _program, [(rows, columns)] * count, [weight(columns, columns)], options, tied)
