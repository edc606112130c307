"""Portable kernels over torch eager: every operator call of torch's OpInfo database, grown to several sizes.

python -m benchmarks.operators [PATTERN ...] [--sizes N ...] [--dtypes NAME ...] [--worst N]

A call is grown by one of its sizes: wherever this stands in its tensors, they are repeated. The first and the last
dimension of the first tensor are tried in turn. The kernel writes into memory that it is given, as in the runtime.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from benchmarks.engines import THREADS
from delegate.edge.node import dtype_of
from delegate.kernels.table import Kernel
from tests.support import opinfo
from tests.support.kernels import TABLE, garbage, is_list, schema_arguments, tensors_in, to_runtime

SIZES = (1, 1_000, 100_000, 10_000_000)
_SAMPLES = 4  # of each entry of the database
_GOAL = 3.0  # a ratio beyond it is measured again
_LONGEST = 1.0  # seconds: a kernel that takes longer is measured once


@dataclass(frozen=True)
class Call:
    """An operator on arguments that torch takes."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def describe(self) -> str:
        return opinfo.describe(self.args)

    def elements(self) -> int:
        return sum(t.numel() for t in opinfo.tensors((self.args, self.kwargs)))

    def grown(self, size: int, factor: int) -> Call:
        """Every dimension of this size is repeated."""
        args, kwargs = tree_map_only(torch.Tensor, lambda t: _repeat(t, size, factor), (self.args, self.kwargs))
        return Call(self.op, args, kwargs)


@dataclass(frozen=True)
class Row:
    """What was measured of one call: seconds of the kernel and of eager."""

    call: str
    op: str
    size: int
    ours: float
    eager: float

    @property
    def ratio(self) -> float:
        return self.ours / self.eager


class _Recorder(opinfo.Comparison):
    """Keeps the largest call of each overload and rank in place of comparing calls."""

    def __init__(self) -> None:
        super().__init__(opinfo.Rows())
        self.calls: dict[tuple[str, tuple[int, ...]], Call] = {}

    def _compare(self, op: OpOverload, args: Any, kwargs: Any) -> None:
        first = next(opinfo.tensors((args, kwargs)), None)
        if first is None or first.numel() == 0:
            return
        call, key = Call(op, args, kwargs), (str(op), first.ndim)
        if key not in self.calls or call.elements() > self.calls[key].elements():
            self.calls[key] = call


def recorded(entries: Sequence[Any], dtype: torch.dtype) -> list[Call]:
    """For every overload that these entries reach, its largest call of the highest rank."""
    recorder = _Recorder()
    for entry in entries:
        if dtype not in entry.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        for _, sample in zip(range(_SAMPLES), entry.sample_inputs("cpu", dtype, requires_grad=False), strict=False):
            try:
                with recorder:
                    entry(sample.input, *sample.args, **sample.kwargs)
            except (RuntimeError, AssertionError, NotImplementedError):
                continue
    highest: dict[str, tuple[int, Call]] = {}
    for (name, rank), call in recorder.calls.items():
        if name not in highest or rank > highest[name][0]:
            highest[name] = (rank, call)
    return [call for _, call in highest.values()]


def _repeat(t: torch.Tensor, size: int, factor: int) -> torch.Tensor:
    return t.repeat([factor if n == size else 1 for n in t.shape]) if size in t.shape else t


def variants(call: Call, size: int) -> Iterator[Call]:
    """The call as it is for size 1, else grown along its first and along its last dimension, where torch takes it."""
    first = next(opinfo.tensors((call.args, call.kwargs)))
    if size == 1:
        yield call
        return
    for n in dict.fromkeys((first.shape[0], first.shape[-1]) if first.ndim else ()):
        grown = _to_size(call, n, size)
        if grown is not None:
            yield grown


def _to_size(call: Call, n: int, size: int) -> Call | None:
    """The call with a size grown until its tensors have about `size` elements; None where torch does not take it."""
    shapes = [t.shape for t in opinfo.tensors((call.args, call.kwargs))]
    if not any(n in shape for shape in shapes):
        return None
    steepest = max(list(shape).count(n) for shape in shapes)
    factor = max(1, round((size / call.elements()) ** (1 / steepest)))
    grown = call.grown(n, factor)
    try:
        results = list(opinfo.tensors([grown.op(*grown.args, **grown.kwargs)]))
    except (RuntimeError, IndexError, ValueError):
        return None
    return grown if size // 8 <= max(grown.elements(), *(t.numel() for t in results), 0) <= 10 * size else None


def kernel_of(call: Call, expected: Sequence[torch.Tensor]) -> tuple[Kernel, Callable[[], Any]] | None:
    """The kernel, and a function that runs it as the runtime does; None for views and where no kernel takes it."""
    filled = schema_arguments(call.op, call.args, call.kwargs)
    dtypes = {t for x in (*tensors_in(filled), *expected) if (t := dtype_of(x.dtype))}
    kernel = TABLE.find(str(call.op), dtypes) or TABLE.find(str(call.op), dtypes, allocates=True)
    if kernel is None or kernel.is_view:
        return None
    arguments = [to_runtime(a) for a in filled]
    if kernel.allocates:
        return kernel, lambda: kernel.function(*arguments)
    results = tuple(garbage(t) for t in expected)
    out = results if len(call.op._schema.returns) > 1 or is_list(call.op) else results[0]
    return kernel, lambda: kernel.function(*arguments, out=out)


def measure(call: Call, rounds: int) -> tuple[float, float] | None:
    """Seconds of the kernel and of eager, interleaved: the least of the rounds."""
    found = call.op(*call.args, **call.kwargs)
    prepared = kernel_of(call, list(opinfo.tensors(found)))
    if prepared is None:
        return None
    functions = (prepared[1], lambda: call.op(*call.args, **call.kwargs))
    repeats = []
    for function in functions:
        seconds = _time(function, 1)
        repeats.append(max(1, int(2e-3 / max(seconds, 1e-7))))
        if seconds > _LONGEST:
            rounds = 1
    times = [[_time(f, n) for f, n in zip(functions, repeats, strict=True)] for _ in range(rounds)]
    return min(t[0] for t in times), min(t[1] for t in times)


def _time(function: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def sweep(calls: Sequence[Call], sizes: Sequence[int], rounds: int) -> Iterator[Row]:
    for call in calls:
        for size in sizes:
            for grown in variants(call, size):
                try:
                    measured = measure(grown, rounds)
                except Exception as error:  # what the tests say of a kernel is not this file's matter
                    print(f"  {call.op} {grown.describe()}: {type(error).__name__}: {error}"[:200])
                    continue
                if measured is not None and measured[0] > _GOAL * measured[1]:  # perhaps others were at work
                    again = measure(grown, 3 * rounds)
                    measured = again and (min(measured[0], again[0]), min(measured[1], again[1]))
                if measured is not None:
                    row = Row(f"{call.op} {grown.describe()}"[:150], str(call.op), size, *measured)
                    print(f"  {row.ratio:6.2f} {row.size:9} {row.call}", flush=True)
                    yield row


def print_table(rows: Sequence[Row], worst: int) -> None:
    print(f"\nThe {worst} worst calls, microseconds, and over those of eager ({THREADS} threads)\n")
    print("| call | size | eager | portable | portable / eager |")
    print("|---" * 5 + "|")
    for row in sorted(rows, key=lambda r: -r.ratio)[:worst]:
        print(f"| {row.call} | {row.size} | {row.eager * 1e6:.1f} | {row.ours * 1e6:.1f} | {row.ratio:.2f} |")
    print("\n| size | calls | over 3 | geometric mean |\n|---|---|---|---|")
    for size in sorted({r.size for r in rows}):
        some = [r.ratio for r in rows if r.size == size]
        print(f"| {size} | {len(some)} | {sum(r > _GOAL for r in some)} | {statistics.geometric_mean(some):.2f} |")
    every = [r.ratio for r in rows]
    print(f"| all | {len(every)} | {sum(r > _GOAL for r in every)} | {statistics.geometric_mean(every):.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"], help='of operators, as "aten.sort*"')
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=THREADS, help="of torch; NumPy reads OPENBLAS_NUM_THREADS")
    parser.add_argument("--worst", type=int, default=60)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows: list[Row] = []
    with warnings.catch_warnings(), torch.inference_mode(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        entries = opinfo.database()
        for dtype in chosen.dtypes:
            calls = [c for c in recorded(entries, getattr(torch, dtype)) if _chosen(c, chosen.patterns)]
            rows += sweep(calls, chosen.sizes, chosen.rounds)
    print(time.strftime("%Y-%m-%d"))
    print_table(rows, chosen.worst)


def _chosen(call: Call, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(str(call.op), pattern) for pattern in patterns)


if __name__ == "__main__":
    main()
