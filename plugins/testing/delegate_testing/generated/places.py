"""Samples of operators that read, write and move parts of tensors, and of programs with several operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from delegate_testing.generated.sample import TRUTH, Draw, FunctionSample, dim_of, each, weight


def _slice_cases(x: torch.Tensor, dim: int, start: int | None, end: int | None, step: int) -> Any:
    return torch.ops.aten.slice.Tensor(x, dim, start, end, step)


def _put(x: torch.Tensor, values: torch.Tensor, index: torch.Tensor, accumulate: bool) -> torch.Tensor:
    return torch.index_put(x, [index.long()], values, accumulate)


def _add_at(x: torch.Tensor, values: torch.Tensor, index: torch.Tensor, alpha: float) -> torch.Tensor:
    return x.index_add(0, index.long(), values, alpha=alpha)


def _by_index(x: torch.Tensor, index: torch.Tensor, function: Any, dim: int) -> Any:
    return function(x, dim, index.long())


def _written(x: torch.Tensor, y: torch.Tensor, dim: int, start: int, end: int, step: int) -> torch.Tensor:
    return torch.slice_scatter(x, y, dim, start, end, step)


@st.composite
def places(draw: Draw) -> FunctionSample:
    """Draw an operator that reads, writes or moves parts of a tensor."""
    shape = tuple(draw(st.lists(st.integers(2, 6), min_size=1, max_size=4)))
    rank, kind = len(shape), draw(st.sampled_from(sorted(_PLACES)))
    dim = dim_of(draw, rank)
    return _PLACES[kind](draw, shape, dim)


def _slice(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    ends = st.none() | st.integers(-8, 8)
    options = {"dim": dim, "start": draw(ends), "end": draw(ends), "step": draw(st.integers(1, 3))}
    return FunctionSample("slice", _slice_cases, [shape], options=options)


def _select(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    index = draw(st.integers(-shape[dim], shape[dim] - 1))
    return FunctionSample("select", torch.select, [shape], options={"dim": dim, "index": index})


def _split(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    kind = draw(st.sampled_from(["split", "chunk", "unbind"]))
    options: dict[str, Any] = {"dim": dim}
    if kind == "split":
        options["split_size_or_sections"] = draw(st.integers(1, 4))
    if kind == "chunk":
        options["chunks"] = draw(st.integers(1, 4))
    return FunctionSample(kind, getattr(torch, kind), [shape], options=options)


def _flip(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    dims = tuple({dim, dim_of(draw, len(shape)) % len(shape) - len(shape)})
    return FunctionSample("flip", torch.flip, [shape], options={"dims": tuple({d % len(shape) for d in dims})})


def _roll(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    shift = draw(st.integers(-7, 7))
    options: dict[str, Any] = {"shifts": shift} if draw(st.integers(0, 3)) == 0 else {"shifts": shift, "dims": dim}
    return FunctionSample("roll", torch.roll, [shape], options=options)


def _pick_cases(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    kind = draw(st.sampled_from(["index_select", "gather", "take_along_dim"]))
    if kind == "index_select":
        index = torch.tensor(draw(st.lists(st.integers(0, shape[dim] - 1), min_size=1, max_size=6)))
    else:
        index = torch.randint(0, shape[dim], shape, generator=torch.Generator().manual_seed(sum(shape)))
    function = getattr(torch, kind)
    options = {"dim": dim, "function": (lambda x, d, i: torch.take_along_dim(x, i, d)) if "take" in kind else function}
    return FunctionSample(kind, _by_index, [shape], [index.float()], options)


def _index_put(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    del dim
    index = torch.tensor(draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=5, unique=True)))
    values = (len(index), *shape[1:])
    if draw(TRUTH):
        return FunctionSample("index_put", _put, [shape, values], [index.float()], {"accumulate": draw(TRUTH)})
    return FunctionSample(
        "index_add", _add_at, [shape, values], [index.float()], {"alpha": draw(st.sampled_from([1, 2.5]))}
    )


def _scatter_slice(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    dim %= len(shape)
    size, step = shape[dim], draw(st.integers(1, 2))
    start = draw(st.integers(0, size - 1))
    end = draw(st.integers(start + 1, size))
    count = -(-(end - start) // step)
    part = (*shape[:dim], count, *shape[dim + 1 :])
    return FunctionSample(
        "slice_scatter", _written, [shape, part], options={"dim": dim, "start": start, "end": end, "step": step}
    )


def _triangle(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    kind = draw(st.sampled_from(["tril", "triu", "diagonal"]))
    options: dict[str, Any] = {("offset" if kind == "diagonal" else "diagonal"): draw(st.integers(-2, 2))}
    shape = shape if len(shape) > 1 else (*shape, 3)
    del dim
    return FunctionSample(kind, getattr(torch, kind), [shape], options=options)


def _repeat(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    kind = draw(st.sampled_from(["tile", "repeat_interleave", "expand"]))
    if kind == "tile":
        return FunctionSample(
            kind,
            torch.tile,
            [shape],
            options={"dims": each(draw, len(shape) + draw(st.integers(0, 1)), st.integers(1, 3))},
        )
    if kind == "expand":
        shape = tuple(1 if draw(TRUTH) else s for s in shape)
        sizes = tuple(draw(st.integers(1, 4)) if s == 1 else -1 for s in shape)
        new = each(draw, draw(st.integers(0, 1)), st.integers(1, 3))
        return FunctionSample(kind, torch.Tensor.expand, [shape], options={"size": (*new, *sizes)})
    return FunctionSample(
        kind, torch.repeat_interleave, [shape], options={"repeats": draw(st.integers(1, 3)), "dim": dim}
    )


def _join_cases(*inputs: torch.Tensor, function: Any, dim: int) -> Any:
    return function(inputs, dim)


def _join(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    count, kind = draw(st.integers(1, 7)), draw(st.sampled_from(["cat", "stack"]))
    shapes = [shape] * count
    if kind == "cat":
        shapes = [(*shape[: dim % len(shape)], draw(st.integers(1, 4)), *shape[dim % len(shape) + 1 :]) for _ in shapes]
    tied = [tuple((i, d) for i in range(count)) for d in range(len(shape)) if kind == "stack" or d != dim % len(shape)]
    return FunctionSample(kind, _join_cases, shapes, options={"function": getattr(torch, kind), "dim": dim}, tied=tied)


def _permute_cases(draw: Draw, shape: tuple[int, ...], dim: int) -> FunctionSample:
    rank = len(shape)
    kind = draw(st.sampled_from(["permute", "transpose", "movedim", "flatten", "squeeze", "unsqueeze"]))
    if kind == "permute":
        return FunctionSample(kind, torch.permute, [shape], options={"dims": tuple(draw(st.permutations(range(rank))))})
    if kind == "transpose":
        return FunctionSample(kind, torch.transpose, [shape], options={"dim0": dim, "dim1": dim_of(draw, rank)})
    if kind == "movedim":
        return FunctionSample(kind, torch.movedim, [shape], options={"source": dim, "destination": dim_of(draw, rank)})
    if kind == "flatten":
        first = draw(st.integers(0, rank - 1))
        options = {"start_dim": first, "end_dim": draw(st.integers(first, rank - 1))}
        return FunctionSample(kind, torch.flatten, [shape], options=options)
    if kind == "squeeze":
        ones = tuple(1 if draw(TRUTH) else s for s in shape)
        return FunctionSample(kind, torch.squeeze, [ones], options={"dim": dim})
    return FunctionSample(kind, torch.unsqueeze, [shape], options={"dim": dim})


_PLACES = {
    "slice": _slice, "select": _select, "split": _split, "flip": _flip, "roll": _roll, "picked": _pick_cases,
    "put": _index_put, "scatter": _scatter_slice, "triangle": _triangle, "repeat": _repeat, "join": _join,
    "permute": _permute_cases,
}  # fmt: skip

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
