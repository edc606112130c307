"""The points at which libraries tend to differ from torch, by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

_MAX = torch.finfo(torch.float32).max
_MANTISSAS = (1.0, 1.37, 1.9)


def _both_signs(*values: float) -> Tensor:
    return torch.tensor([sign * value for value in values for sign in (1, -1)], dtype=torch.float64)


def _binades(first: int, last: int, step: int = 1) -> Tensor:
    return _both_signs(*(m * 2.0**e for e in range(first, last, step) for m in _MANTISSAS))


# Values that fill a tensor, as far as they are finite in its dtype.
FILLING: Mapping[str, Tensor] = {
    "zeros": torch.tensor([0.0, -0.0], dtype=torch.float64),
    "subnormal": _both_signs(2.0**-149, 1e-40, 2.0**-127, 2.0**-126),
    "tiny": _binades(-125, -24, 6),
    "small": _binades(-24, 0),
    "ordinary": torch.cat(
        [torch.linspace(-5, 5, 121, dtype=torch.float64), 1 + _binades(-22, -8, 3), -3 + _binades(-22, -8, 3)]
    ),
    "tails": _both_signs(*(k + 0.37 * (k % 4 > 0) for k in range(6, 110, 2)), 88.7, 87.3, 103.9),
    "large": torch.cat([_binades(7, 40, 2), _both_signs(2**24 + 1, 2**24 + 3, 16777217.0, 1e8, 123456789.0)]),
    "limits": _both_signs(3e4, 65504.0, 1e15, 1e20, 1e30, 1.8e38, 3.3895e38, _MAX),
    "halves": torch.cat([_both_signs(*(k + 0.5 for k in range(12))), _both_signs(0.125, 0.25, 2.675, 1e3 + 0.5)]),
    "equal": torch.tensor([2.0], dtype=torch.float64),
    "two values": torch.tensor([1.0, 3.0, 3.0, 1.0, 1.0], dtype=torch.float64),
}
# Values of which each tensor gets one, at several places.
SINGLE: Mapping[str, tuple[float, ...]] = {
    "infinities": (float("inf"), -float("inf")),
    "NaN": (float("nan"),),
}
_ROUNDS = 6  # inputs of a group, at most

Inputs = tuple[Tensor, ...]


def groups(example: Sequence[Tensor], *, elementwise: bool) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs like an example with the group that their numbers are from.

    Integers and bools stay as they are, since they may be indices, except those of elementwise functions.
    """
    yield "example", tuple(example)
    if elementwise and not any(x.is_floating_point() for x in example):
        for turn in range(_ROUNDS):
            yield "integers", tuple(_of_integers(x, turn, place) for place, x in enumerate(example))
    floats = [x for x in example if x.is_floating_point() and x.numel()]
    if not floats:
        return
    for name, numbers in FILLING.items():
        values = numbers[numbers.to(floats[0].dtype).isfinite()]
        rounds = min(_ROUNDS, -(-len(values) // min(x.numel() for x in floats)))
        for turn in range(rounds):
            yield name, _like(example, lambda x, place, v=values, t=turn: _filled(x, v, t, place))
    for name, several in SINGLE.items():
        for turn in range(_ROUNDS // 2):
            for value in several:
                yield name, _like(example, lambda x, place, v=value, t=turn: _with_one(x, v, t, place))
    yield "only -infinity", _like(example, lambda x, place: torch.full_like(x, -float("inf")))
    yield "transposed", _like(example, lambda x, place: x.transpose(-1, -2).contiguous().transpose(-1, -2), least=2)


def sizes(example: Sequence[Tensor]) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs of other sizes, for a program whose sizes are dynamic: one more of all, and 0 and 1 of each."""
    own = {size for x in example for size in x.shape}
    yield "one more", _resized(example, {size: size + 1 for size in own})
    for name, to in (("size 1", 1), ("size 0", 0)):
        for size in sorted(own):
            yield name, _resized(example, {size: to})


def _resized(example: Sequence[Tensor], sizes: Mapping[int, int]) -> Inputs:
    """Return tensors with other sizes, of elements of the example, which are repeated or cut off."""
    return tuple(_resize(x, sizes) for x in example)


def _resize(x: Tensor, sizes: Mapping[int, int]) -> Tensor:
    resized = x
    for dim, size in enumerate(x.shape):
        resized = resized.index_select(dim, torch.arange(sizes.get(size, size)) % max(size, 1))
    return resized.contiguous()


def _of_integers(x: Tensor, turn: int, place: int) -> Tensor:
    if x.dtype is torch.bool:
        return x
    limits = torch.iinfo(x.dtype)
    some = (0, 1, -1, 7, -7, 3, -3, 255, 2**24 + 1, limits.max, limits.min, limits.max - 1)
    values = torch.tensor([v for v in some if limits.min <= v <= limits.max], dtype=x.dtype)
    at = (torch.arange(x.numel()) * (2 * place + 1) + turn * x.numel() + 3 * place) % len(values)
    return values[at].reshape(x.shape)


def _like(example: Sequence[Tensor], change: Callable[[Tensor, int], Tensor], least: int = 0) -> Inputs:
    return tuple(change(x, n) if x.is_floating_point() and x.dim() >= least else x for n, x in enumerate(example))


def _filled(x: Tensor, values: Tensor, turn: int, place: int) -> Tensor:
    """Fill a tensor with values one after the other; each input of a function begins elsewhere and steps otherwise."""
    at = (torch.arange(x.numel()) * (2 * place + 1) + turn * x.numel() + 3 * place) % len(values)
    return values[at].reshape(x.shape).to(x.dtype)


def _with_one(x: Tensor, value: float, turn: int, place: int) -> Tensor:
    changed = x.clone().flatten()
    if changed.numel():
        changed[(turn * (changed.numel() - 1) // 2 + place) % changed.numel()] = value
    return changed.reshape(x.shape)
