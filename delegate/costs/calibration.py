"""Calibration: measure the rates of backends and portable kernels on this machine, for its profile.

Each row is a small model that mostly spends its time in one kind of operator, in a few sizes. It runs on one place
alone, so a plugin needs nothing of its own to be calibrated. A process measures one place; see `calibrate`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from delegate.compile import to_backend
from delegate.costs import quantities as kinds
from delegate.costs.estimates import Estimates
from delegate.costs.machine import BUSY
from delegate.costs.profile import MachineProfile, PlaceRates, Rate
from delegate.costs.quantities import Quantities
from delegate.edge.export import to_edge
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.plugins import PORTABLE
from delegate.processes.answering import Questions
from delegate.processes.limits import call_times, seconds_without_core

_SECONDS = 0.02  # of the calls of one row in one size
_LEAST = 3  # calls that count
_PASSES = 4  # over all rows, after the first measurement of each
_LEAST_SHARE = 0.02  # of a row: the seconds of its own operators, besides those of others
_MOST_WAITING = 0.25  # a share of the time without a core, beyond which the seconds mean little


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """A model for one kind of operator.

    Args:
        kind: The kind of operators that it consists of.
        forward: the model as a function of its inputs.
        sizes: One tuple of input shapes for each program; whole numbers are the inputs of gathers.
    """

    kind: str
    forward: Callable[..., Tensor | tuple[Tensor, ...]]
    sizes: Sequence[tuple[tuple[int, ...], ...]]


def _repeat(count: int, step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(x: Tensor, *others: Tensor) -> Tensor:
        for _ in range(count):
            x = step(x, *others)
        return x

    return forward


def _simple(x: Tensor) -> Tensor:
    return torch.relu(x * 0.5 + 0.25) - 0.125


def _function(x: Tensor) -> Tensor:
    return torch.sigmoid(torch.tanh(x))


def _reduce(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return torch.index_select(x, 0, index)


def _scatter(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
    return torch.index_add(x, 0, index, y)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear")


def _halve(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=0.5, mode="bilinear")


def _sample_grid(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, align_corners=False)


def _copy(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([torch.relu(x), y], 1).transpose(1, 2).contiguous()


_CALLS = [((1, 16),), ((128, 1024),), ((1, 16),) * 8]
ROWS = (
    CalibrationRow("call", lambda *values: tuple(map(torch.relu, values)), _CALLS),
    CalibrationRow(kinds.SIMPLE, _repeat(4, _simple), [((1, 16),), ((128, 1024),), ((2048, 1024),)]),
    CalibrationRow(kinds.FUNCTION, _repeat(4, _function), [((1, 16),), ((256, 512),), ((2048, 1024),)]),
    CalibrationRow(kinds.REDUCTION, _repeat(4, _reduce), [((4, 16),), ((256, 512),), ((2048, 1024),)]),
    CalibrationRow(
        kinds.PRODUCT,
        _repeat(2, F.linear),
        [((1, 64), (64, 64)), ((1, 1024), (1024, 1024)), ((64, 256), (256, 256)), ((256, 768), (768, 768))],
    ),
    CalibrationRow(
        kinds.CONVOLUTION,
        _repeat(2, lambda x, w: F.conv2d(x, w, padding=1)),
        [
            ((1, 8, 8, 8), (8, 8, 3, 3)),
            ((1, 1, 96, 96), (1, 1, 3, 3)),
            ((1, 64, 28, 28), (64, 64, 3, 3)),
            ((8, 32, 28, 28), (32, 32, 3, 3)),
            ((1, 256, 7, 7), (256, 256, 3, 3)),
        ],
    ),
    CalibrationRow(
        kinds.POINTWISE,
        _repeat(2, F.conv2d),
        [((1, 8, 8, 8), (8, 8, 1, 1)), ((1, 128, 28, 28), (128, 128, 1, 1)), ((8, 64, 28, 28), (64, 64, 1, 1))],
    ),
    CalibrationRow(
        kinds.DEPTHWISE,
        _repeat(2, lambda x, w: F.conv2d(x, w, padding=1, groups=len(w))),
        [
            ((1, 8, 8, 8), (8, 1, 3, 3)),
            ((1, 3, 96, 96), (3, 1, 3, 3)),
            ((1, 64, 56, 56), (64, 1, 3, 3)),
            ((8, 32, 28, 28), (32, 1, 3, 3)),
        ],
    ),
    CalibrationRow(
        kinds.VOLUME,
        lambda x, w: F.conv3d(x, w, padding=1),
        [((1, 4, 8, 8, 8), (8, 4, 3, 3, 3)), ((1, 16, 16, 16, 16), (16, 16, 3, 3, 3))],
    ),
    CalibrationRow(
        kinds.TRANSPOSED,
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        [((1, 8, 8, 8), (8, 8, 2, 2)), ((1, 32, 32, 32), (32, 3, 4, 4)), ((1, 64, 14, 14), (64, 32, 2, 2))],
    ),
    CalibrationRow(
        kinds.ATTENTION,
        F.scaled_dot_product_attention,
        [((1, 2, 8, 16),) * 3, ((1, 4, 512, 8),) * 3, ((1, 8, 128, 64),) * 3, ((1, 8, 512, 64),) * 3],
    ),
    CalibrationRow(
        kinds.SOFTMAX, _repeat(4, lambda x: torch.softmax(x, -1)), [((4, 16),), ((256, 512),), ((8192, 16),)]
    ),
    CalibrationRow(
        kinds.NORM, _repeat(4, lambda x: F.layer_norm(x, x.shape[-1:])), [((4, 16),), ((256, 512),), ((2048, 512),)]
    ),
    CalibrationRow(kinds.GATHER, _gather, [((64, 16), (16,)), ((4096, 64), (4096,))]),
    CalibrationRow(kinds.SCATTER, _scatter, [((64, 16), (16,), (16, 16)), ((4096, 64), (4096,), (4096, 64))]),
    CalibrationRow(
        kinds.COPY, _copy, [((1, 4, 16), (1, 4, 16)), ((4, 128, 128), (4, 128, 128)), ((8, 512, 512), (8, 512, 512))]
    ),
    CalibrationRow(
        kinds.AVERAGE, _repeat(2, lambda x: F.avg_pool2d(x, 5, 1, 2)), [((1, 8, 8, 8),), ((1, 32, 48, 48),)]
    ),
    CalibrationRow(kinds.WINDOW, _repeat(3, lambda x: F.max_pool2d(x, 3, 1, 1)), [((1, 8, 8, 8),), ((1, 32, 56, 56),)]),
    CalibrationRow(kinds.INDEX, lambda x, i: x[i], [((64, 16), (16,)), ((4096, 64), (4096,))]),
    CalibrationRow(kinds.POWER, _repeat(4, lambda x: torch.sin(torch.pow(x * x, 0.7))), [((1, 16),), ((64, 256),)]),
    CalibrationRow(kinds.RESIZE, _double, [((1, 4, 4, 4),), ((1, 16, 32, 32),)]),
    CalibrationRow(kinds.RESIZE, _halve, [((1, 3, 256, 256),)]),
    CalibrationRow(kinds.TOPK, lambda x: torch.topk(x, 4)[0], [((4, 64),), ((1, 8192),), ((2048, 16),)]),
    CalibrationRow(kinds.SCAN, lambda x: torch.cumsum(x, -1), [((4, 64),), ((64, 1024),), ((4096, 16),)]),
    CalibrationRow(
        kinds.ELEMENT_GATHER, lambda x, i: torch.gather(x, 1, i), [((16, 64), (16, 16)), ((64, 1024), (64, 256))]
    ),
    CalibrationRow(
        kinds.WIDE_DEPTHWISE,
        lambda x, w: F.conv2d(x, w, groups=len(w)),
        [((1, 3, 16, 16), (3, 1, 7, 7)), ((1, 3, 48, 48), (3, 1, 11, 11))],
    ),
    CalibrationRow(kinds.SAMPLE, _sample_grid, [((1, 4, 8, 8), (1, 4, 4, 2)), ((1, 16, 32, 32), (1, 32, 32, 2))]),
    CalibrationRow(kinds.SPECIAL, lambda x: torch.erfinv(x * 0.1), [((4, 16),), ((64, 256),)]),
    CalibrationRow(kinds.SORT, lambda x: torch.sort(x)[0], [((4, 64),), ((1, 8192),), ((2048, 16),)]),
)


_WITH_WEIGHTS = frozenset(
    {
        kinds.PRODUCT, kinds.CONVOLUTION, kinds.POINTWISE, kinds.DEPTHWISE, kinds.WIDE_DEPTHWISE, kinds.VOLUME,
        kinds.TRANSPOSED,
    }
)  # fmt: skip
_INDEXED = frozenset({kinds.GATHER, kinds.INDEX, kinds.ELEMENT_GATHER, kinds.SCATTER})


class _Model(nn.Module):
    """A row in one size; tensors after the first one are weights, unless the row has none."""

    def __init__(self, row: CalibrationRow, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.forward_of = row.forward
        values = [torch.randn(shape, generator=generator) for shape in shapes]
        if row.kind in _INDEXED:
            values[1] = torch.randint(min(shapes[0]), shapes[1], generator=generator)
        first = 1 if row.kind in _WITH_WEIGHTS else len(values)
        self.inputs = tuple(values[:first])
        self.weights = nn.ParameterList(nn.Parameter(v, requires_grad=False) for v in values[first:])

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.forward_of(*inputs, *self.weights)


_ELSEWHERE = np.zeros(2**18, np.float32)


def _work_elsewhere() -> None:
    """Do what other parts of a program do between two calls: fill a cache, and let a library's threads sleep."""
    np.add(_ELSEWHERE, 1.0, out=_ELSEWHERE)


@dataclass(slots=True)
class _Sample:
    """A row in one size, as a loaded program.

    Args:
        row: the row.
        operators: what the seconds of its operators depend on.
        values: the number of values that go in and out.
        crossing: their bytes.
        run: calls the program.
        seconds: the least median of its measurements, since other processes only add to it.
    """

    row: CalibrationRow
    operators: Sequence[Quantities]
    values: int
    crossing: int
    run: Callable[[], object]
    seconds: float = math.inf

    def measure(self) -> None:
        """Measure the program once more."""
        self.seconds = min(self.seconds, median(call_times(self.run, _SECONDS, _LEAST, _work_elsewhere)))


def measure(place: str, limit: float) -> PlaceRates:
    """Return the rates of a place, as far as its seconds allow.

    Rows that the place does not run as one partition are left out. All rows are measured several times, since another
    process may use the cores for some seconds.

    Args:
        place: the name of a backend, or "portable".
        limit: seconds after which no further measurement begins.
    """
    end = time.monotonic() + limit
    samples: list[_Sample] = []
    with ExitStack() as stack:
        for row in ROWS:
            for shapes in row.sizes:
                if time.monotonic() > end:
                    return _fit(place, samples)
                try:
                    sample = _sample(place, row, shapes, stack)
                except Exception:  # the library cannot run it, and others may still run
                    continue
                samples += [] if sample is None else [sample]
        for sample in samples * _PASSES:
            if time.monotonic() < end:
                sample.measure()
        return _fit(place, samples)


def _sample(place: str, row: CalibrationRow, shapes: Sequence[tuple[int, ...]], stack: ExitStack) -> _Sample | None:
    """Return the first measurement of a row in one size; the stack closes its program."""
    model = _Model(row, shapes).eval()
    exported = torch.export.export(model, model.inputs)
    backends = [] if place == PORTABLE else [CapabilityPartitioner(place, isolate="none")]  # this process is one alone
    program = to_backend(exported, backends, config={"partitioning": {"min_partition_size": 0}}, cache=False)
    report = program.report
    if place != PORTABLE and (len(report.partitions) != 1 or any(n.backend != place for n in report.nodes)):
        return None
    loaded = stack.enter_context(program.loaded)
    method, arrays = loaded.method("forward"), [i.numpy() for i in model.inputs]
    crossing = [a.nbytes for a in (*arrays, *method.run(arrays)) if isinstance(a, np.ndarray)]
    edge = to_edge(exported, name="forward", preserve_ops=frozenset(n.op for n in report.nodes))
    quantities = Estimates(_NOTHING).quantities
    operators = [q for n in edge.graph.nodes if (q := quantities(n)).kind != kinds.VIEW]
    sample = _Sample(row, operators, len(crossing), sum(crossing), partial(method.run, arrays))
    sample.measure()
    return sample


_NOTHING = MachineProfile("", {})


def _fit(place: str, samples: Sequence[_Sample]) -> PlaceRates:
    """Return the rates that explain the samples best: of calls first, then of simple operators, then of each kind.

    The rates of one kind are the least relative error over its samples, with what is known of the rest subtracted.
    """
    rates: dict[str, Rate] = {}
    by_kind: dict[str, list[_Sample]] = {}
    for sample in samples:
        by_kind.setdefault(sample.row.kind, []).append(sample)
    call = Rate(0.0)
    if place != PORTABLE and len(by_kind.get("call", ())) == len(_CALLS) and len(by_kind.get(kinds.SIMPLE, ())) > 1:
        call, rates[kinds.SIMPLE] = _calls(by_kind["call"], by_kind[kinds.SIMPLE])
    for kind, own in by_kind.items():
        if kind == "call" or kind in rates:
            continue
        points = []
        for sample in own:
            rest = call.seconds(sample.values, sample.crossing)
            others = (q for q in sample.operators if q.kind != kind and q.kind in rates)
            rest += sum(rates[q.kind].seconds(q.units, q.nbytes) for q in others)
            mine = [q for q in sample.operators if q.kind == kind]
            if mine:
                seconds = max(sample.seconds - rest, _LEAST_SHARE * sample.seconds)
                points.append((len(mine), sum(q.units for q in mine), sum(q.nbytes for q in mine), seconds))
        if points:
            rates[kind] = _least_error(points, _BY_MEMORY if kind == kinds.DEPTHWISE else _COLUMNS)
    if place == PORTABLE:
        rates[kinds.PERMUTE] = Rate(0.0)
    return PlaceRates(call, rates, {}, "calibrated")


def _calls(single: Sequence[_Sample], chains: Sequence[_Sample]) -> tuple[Rate, Rate]:
    """Return the rates of calls and of simple operators: a chain of 16 differs from one operator by 15 of them.

    Eight operators side by side differ from one by 14 values that go in and out, and by seven operators.
    """
    (small, large, wide), (many, many_large, *far) = single, chains
    count = len(many.operators)
    each = max((many.seconds - small.seconds) / max(count - 1, 1), 0.0)
    units = large.operators[0].units
    each_large = max((many_large.seconds - large.seconds) / max(count - 1, 1), each)
    simple = Rate(each, (each_large - each) / units)
    more = wide.seconds - small.seconds - each * (len(wide.operators) - 1)
    value = max(more, 0.0) / (wide.values - small.values)
    call = max(small.seconds - each - value * small.values, 0.0)
    byte = max(large.seconds - call - value * large.values - simple.seconds(units, 0), 0.0) / large.crossing
    calls = Rate(call, value, byte)
    for sample in far:  # of tensors that no fast cache holds
        near = calls.seconds(sample.values, sample.crossing) + sum(simple.seconds(q.units, 0) for q in sample.operators)
        simple = replace(simple, byte=max(sample.seconds - near, 0.0) / sum(q.nbytes for q in sample.operators))
    return calls, simple


_COLUMNS = ((0, 1, 2), (0, 1), (1, 2), (1,))  # the parts of a rate that may be above zero: call, unit, byte
_BY_MEMORY = (*_COLUMNS, (0, 2))  # of a kind with little work for each byte


def _least_error(points: Sequence[tuple[int, float, float, float]], subsets: Sequence[tuple[int, ...]]) -> Rate:
    """Return the rate with the least relative error at points of (operators, units, bytes, seconds), none negative."""
    matrix = np.array([[c / s, u / s, b / s] for c, u, b, s in points])
    best, least = Rate(0.0), float("inf")
    for columns in map(list, subsets):
        if len(columns) > len(points):
            continue
        found, *_ = np.linalg.lstsq(matrix[:, columns], np.ones(len(points)), rcond=None)
        if (found < 0).any():
            continue
        error = float(np.square(matrix[:, columns] @ found - 1).sum())
        if error < least:
            values = [0.0, 0.0, 0.0]
            for column, value in zip(columns, found, strict=True):
                values[column] = float(value)
            best, least = Rate(*values), error
    return best


def questions() -> Questions:
    """Return the questions of `delegate.costs.machine`."""
    return {"measure": lambda message, _: _measure_on_quiet_cores(*message)}


def _measure_on_quiet_cores(place: str, limit: float) -> dict[str, Any]:
    """Return the rates of a place as plain data, or the problem if other processes used the cores meanwhile."""
    start, waited = time.monotonic(), seconds_without_core()
    rates = measure(place, limit)
    is_busy = seconds_without_core() - waited > _MOST_WAITING * (time.monotonic() - start)
    return {"problem": BUSY} if is_busy else asdict(rates)
