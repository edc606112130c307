"""The difference of results from torch's in double precision, with eager's own error as the yardstick."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_FACTOR = 4  # of eager's own error
_STEPS = {torch.float16: 2, torch.bfloat16: 2}  # allowed steps of a dtype; a library that rounds otherwise needs one
_DEFAULT_STEPS = 16
_SMALLEST = 2.0**-126  # below are subnormal numbers, which libraries may count as 0
_SMALLEST_SUM = 2.0**-116  # of sums of products that may be subnormal


@dataclass(frozen=True)
class Difference:
    """A result that is further from the exact one than eager's rounding explains.

    Args:
        kind: "values", "infinities", "NaN", "signs of zero", "integers", "shapes" or "dtypes".
        error: relative to the exact value, or to the largest one of a result that is no elementwise function.
        result, expected: of the worst element, or the shapes or dtypes.
    """

    kind: str
    error: float
    result: str
    expected: str


def differences(results: Any, eager: Any, exact: Any, terms: Any = None) -> Iterator[Difference]:
    """Yield the worst difference of each kind.

    Args:
        results: of a backend.
        eager: torch's in the dtype of the model.
        exact: torch's in double precision, from the same inputs; `eager` if torch has none.
        terms: of a function that adds up, torch's result for the absolute inputs, in double precision, since errors are
            relative to the largest sum of absolute terms. None for an elementwise function, whose errors are relative
            to each element.
    """
    worst: dict[str, Difference] = {}
    trees = (results, eager, exact, exact if terms is None else terms)
    for result, rounded, wide, sums in zip(*map(_leaves, trees), strict=True):
        for found in _of_leaf(result, rounded, wide, None if terms is None else sums):
            if found.kind not in worst or found.error > worst[found.kind].error:
                worst[found.kind] = found
    yield from worst.values()


def _leaves(value: Any) -> Sequence[Tensor]:
    return [torch.as_tensor(leaf) for leaf in tree_leaves(value)]


def _of_leaf(result: Tensor, eager: Tensor, exact: Tensor, terms: Tensor | None) -> Iterator[Difference]:
    if result.shape != eager.shape or result.dtype != eager.dtype:
        what = "shapes" if result.shape != eager.shape else "dtypes"
        yield Difference(what, 1.0, f"{result.dtype} {list(result.shape)}", f"{eager.dtype} {list(eager.shape)}")
        return
    if not eager.is_floating_point():
        yield from _where("integers", result != eager, torch.ones(eager.shape), result, eager)
        return
    number = eager.isfinite() & result.isfinite()
    yield from _where("NaN", result.isnan() != eager.isnan(), torch.ones(eager.shape), result, eager)
    others = ~number & ~result.isnan() & ~eager.isnan() & (result != eager)
    # Exact values that round to the largest number or to infinity may become either.
    ratio = exact.double().abs() / torch.finfo(eager.dtype).max
    border = (ratio > 1 - 1e-6) & (ratio < 1 + 1e-6)
    yield from _where("infinities", others & ~border, torch.ones(eager.shape), result, eager)
    if terms is None:  # IEEE 754 leaves the signs of sums and maxima open
        zeros = number & (result == 0) & (eager == 0) & (result.signbit() != eager.signbit())
        yield from _where("signs of zero", zeros, torch.ones(eager.shape), result, eager)
    wide, own = exact.double(), (eager.double() - exact.double()).abs()
    number &= wide.isfinite()
    if not number.any():
        return
    wide, own = wide.where(number, 0.0), own.where(number, 0.0)
    error = (result.double().where(number, 0.0) - wide).abs()
    smallest = max(_SMALLEST if terms is None else _SMALLEST_SUM, torch.finfo(eager.dtype).smallest_normal)
    if terms is None:
        scale = wide.abs()
        own = (own / scale.clamp(min=smallest)).max().clamp(
            max=1.0
        ) * scale  # eager's luck at one element is no measure
    else:
        largest = torch.cat([wide.flatten(), terms.double().flatten()]).abs().nan_to_num(0.0, 0.0, 0.0).max()
        scale, own = largest.expand(wide.shape), own.max().expand(own.shape)
    step = torch.finfo(eager.dtype).eps * _STEPS.get(eager.dtype, _DEFAULT_STEPS)
    is_wrong = error > _FACTOR * own + step * scale + smallest
    yield from _where("values", is_wrong, error / scale.clamp(min=smallest), result, exact)


def _where(kind: str, mask: Tensor, error: Tensor, result: Tensor, expected: Tensor) -> Iterator[Difference]:
    if mask.any():
        place = int(torch.where(mask, error.double(), -1.0).argmax())
        got, right = result.flatten()[place].item(), expected.flatten()[place].item()
        yield Difference(kind, float(error.flatten()[place]), f"{got:.9g}", f"{right:.9g}")
