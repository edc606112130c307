"""Rows whose number depends on data, and functions of them, called with 0, 1 and more rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import Dim
from torch.nn import functional as F

import delegate
from delegate.compiled import CompiledProgram
from delegate.testing import assert_same
from tests.support.detection import torchvision
from tests.support.functions import NamedFunction
from tests.support.values import checked_item, numbers

ROWS = numbers(8, 6)


def masks(*counts: int, rows: int = 8) -> list[torch.Tensor]:
    """Return a mask for each count of rows."""
    return [torch.arange(rows) * 5 % rows < count for count in counts]


def suppressed(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the places of the rows that are kept of boxes that do not overlap. torchvision's minimum of them is 2."""
    corners = torch.arange(x.shape[0])[mask].float()[:, None]
    kept = torch.ops.torchvision.nms(torch.cat([corners, corners, corners + 1, corners + 1], 1), x[mask].sum(1), 0.5)
    return mask.nonzero()[:, 0][kept]


# Name -> some rows of x, as many as the mask has.
PRODUCERS: dict[str, Callable[[Any, Any], Any]] = {
    "nms": lambda x, y: x[suppressed(x, y)],
    "mask": lambda x, y: x[y],
    "masked_select": lambda x, y: torch.masked_select(x, y[:, None]).reshape(-1, 6),
    "nonzero": lambda x, y: x.index_select(0, y.nonzero()[:, 0]),
    "where": lambda x, y: x[torch.where(y)[0]],
    "unique": lambda x, y: x[torch.unique(torch.arange(8)[y])],
    "unique_consecutive": lambda x, y: x[: torch.unique_consecutive(torch.arange(8)[y]).shape[0]],
    "bincount": lambda x, y: torch.bincount(torch.arange(8)[y].cumsum(0) * 0 + 1)[:, None] * x[0],
    "repeat_interleave": lambda x, y: torch.repeat_interleave(x, y.long(), dim=0),
    "item": lambda x, y: x[: checked_item(y.sum(), 0, 8)],
    "item as a size": lambda x, y: x.new_ones(checked_item(y.sum(), 0, 8), 6) * x[:1],
    "tolist": lambda x, y: x.split([checked_item(n, 0, 8) for n in (y.sum(), (~y).sum())])[0],
    "filter of a filter": lambda x, y: x[y][x[y][:, 0] > -0.5],
}
_ONES = torch.ones(5)
# Name -> a function of these rows.
CONSUMERS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda r: r.relu() * 2 + 1,
    "linear": lambda r: F.linear(r, numbers(5, 6), _ONES),
    "sum": lambda r: r.sum(0),
    "mean": lambda r: (r.mean(0), r.mean(1)),
    "variance": lambda r: r.var(1),
    "maximum": lambda r: r.amax(1),
    "softmax": lambda r: (r.softmax(0), r.softmax(1)),
    "matmul": lambda r: (r @ r.T, r.T @ r),
    "attention": lambda r: (r @ numbers(3, 6).T).softmax(0).T @ r,
    "layer norm": lambda r: F.layer_norm(r, (6,)),
    "convolution": lambda r: F.conv1d(r.reshape(-1, 3, 2), numbers(4, 3, 3), padding=1),
    "pooling": lambda r: F.max_pool2d(r.reshape(-1, 1, 2, 3), 2, 1),
    "sort": lambda r: torch.sort(r, stable=True, dim=0),
    "topk": lambda r: r.topk(2, 1),
    "cat": lambda r: torch.cat([r, r * 2, numbers(2, 6)]),
    "gather": lambda r: r.gather(1, r.argsort(1)),
    "scatter": lambda r: torch.zeros(64, 6).index_put((torch.arange(r.shape[0]),), r),
    "first rows": lambda r: (r[:1] * 2, r[:2], r[1:], r[:-1]),
    "pairs": lambda r: r[:, None] - r,
    "overlaps": lambda r: (torch.minimum(r[:, None, 3:], r[:, 3:]) - torch.maximum(r[:, None, :3], r[:, :3])).clamp(0),
    "size in numbers": lambda r: r.sum() / max(r.shape[0], 1) + r.shape[0],
    "samples": lambda r: F.grid_sample(numbers(1, 1, 4, 4), r[None, None, :, :2], align_corners=False),
    "branches": lambda r: torch.cond(r.sum() > 0, lambda a: a * 2, lambda a: a - 1, (r,)),
}  # fmt: skip
# torch decides something by these sizes, or assumes something of them, so it exports these only after nms.
AFTER_NMS: dict[str, Callable[[Any], Any]] = {
    "broadcast": lambda r: r * r[:1],
    "batch norm": lambda r: F.batch_norm(r, numbers(6) + 2, numbers(6).abs() + 1),
    "fused attention": lambda r: F.scaled_dot_product_attention(*[r[None, None]] * 3),
    "group norm": lambda r: F.group_norm(r, 2),
    "logsumexp": lambda r: r.logsumexp(1),
    "roll": lambda r: r.roll(1, 0),
}
CASES = {
    **{(producer, "elementwise"): (PRODUCERS[producer], CONSUMERS["elementwise"]) for producer in PRODUCERS},
    **{("nms", name): (PRODUCERS["nms"], function) for name, function in {**CONSUMERS, **AFTER_NMS}.items()},
    **{("mask", name): (PRODUCERS["mask"], function) for name, function in CONSUMERS.items()},
}


def compare(case: tuple[str, str], config: Mapping[str, Any], *, dynamic: bool = False) -> CompiledProgram:
    """Compare a case with eager for several numbers of rows.

    Args:
        case: of CASES.
        config: the configuration, with the backends.
        dynamic: give the input a dynamic size, too, which the function uses beside the other.
    """
    producer, consumer = CASES[case]

    def function(x: Any, y: Any) -> Any:
        rows = producer(x, y)
        return (consumer(rows), rows.sum(0) / x.shape[0] + x.mean(0)) if dynamic else consumer(rows)

    size = Dim("n", min=2, max=64)
    calls = [(8, 3), (8, 0), (8, 1), (8, 2), (8, 8), (8, 0)]
    calls += [(5, 1), (2, 1), (2, 0), (12, 12)] if dynamic else []
    with torchvision(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*degrees of freedom")  # torch's, of a variance of nothing
        dims = ({0: size}, {0: size}) if dynamic else None
        example = (ROWS, *masks(3))
        exported = torch.export.export(NamedFunction(function).eval(), example, dynamic_shapes=dims)
        program = delegate.to_backend(exported, config=dict(config))
        for rows, count in calls:
            x, (mask,) = numbers(rows, 6), masks(count, rows=rows)
            assert_same(program(x, mask), function(x, mask))
    return program


# The cases whose functions do not depend on the number of rows of x.
WITH_ANY_ROWS = [case for case in CASES if case[0] in ("nms", "mask", "masked_select", "nonzero", "where")]
