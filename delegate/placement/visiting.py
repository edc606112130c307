"""Measures the candidates of a bundle on the machine where they are wanted. Without torch."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from delegate.cache.environment import machine
from delegate.errors import ProgramError
from delegate.placement import bundle
from delegate.placement.calm import Calm
from delegate.placement.elsewhere import Costs, MethodCosts, ProgramCosts
from delegate.placement.judging import Examined, examined, numbers, results, sqnr_db
from delegate.placement.racing import SURVEYED, compared, measured, rounds
from delegate.placement.trials import ProcessBench, Seat, Trial, patience, until

_RACED = 0.5  # of the budget, where the rest is for programs whose steps are timed


def measure(
    path: str | os.PathLike[str],
    *,
    kernels: Sequence[str] | None = None,
    budget: float | None = None,
    trust_code: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Run the plans of a bundle by turns, each in a process of its own, until it is known which is the best.

    Then those whose steps are timed, which tell what the parts of the method cost.

    Args:
        path: of the bundle.
        kernels: names of the libraries to run on; see `delegate.load`.
        budget: seconds for all; without it as the bundle says.
        trust_code: whether partitions that are machine code are opened: they run as this process.
        progress: is told in a few words what is done.

    Raises:
        ProgramError: it is no sound bundle.
    """
    with tempfile.TemporaryDirectory(prefix="delegate-") as folder:
        tasks = bundle.read(path, Path(folder))
        if budget is not None and not 0 < budget < math.inf:
            raise ProgramError(f"a budget of {budget:g} s is no time to measure in", remedy="give more")
        methods, begun = {}, time.monotonic()
        for number, task in enumerate(tasks):
            progress(f"{task.method}: measuring {', '.join(e.name for e in task.entries)}")
            seconds = task.budget if budget is None else budget / len(tasks)
            own = Path(folder) / f"{number}-run"
            own.mkdir()
            end = min(begun + (number + 1) * seconds, time.monotonic() + seconds)
            limits = (patience(seconds), until(end))
            bench = ProcessBench(own, task.calls[0], kernels, *limits, trust_code=trust_code)
            methods[task.method] = _measured(task, bench, seconds, end)
        return Costs(machine(), methods)


def _measured(task: bundle.Task, bench: ProcessBench, budget: float, end: float) -> MethodCosts:
    start = time.monotonic()
    timed, whole = ([_trial(task, e) for e in task.entries if e.is_watched == is_timed] for is_timed in (True, False))
    found: dict[str, float] = {}
    inaccurate: dict[str, str] = {}

    def check(seats: Mapping[str, Seat]) -> Mapping[str, str]:
        looked = _examined(task, seats, found)
        inaccurate.update(looked.inaccurate)
        return looked.failed

    def has_time() -> bool:
        return time.monotonic() < end

    def is_racing() -> bool:
        return time.monotonic() < end - (budget * (1 - _RACED) if timed else 0)

    calm = Calm()
    records = compared(whole, bench, check, inaccurate, is_racing, has_time, calm)
    records |= measured(timed, bench, rounds(SURVEYED), has_time, calm=calm)
    programs = {e.name: ProgramCosts(e.digest, records[e.name], found.get(e.name)) for e in task.entries}
    return MethodCosts(task.objective, bundle.described(task.calls[0]), budget, time.monotonic() - start, programs)


def _trial(task: bundle.Task, entry: bundle.Entry) -> Trial:
    options = {backend: {"threads": count} for backend, count in entry.threads.items()}
    if entry.is_watched:
        return Trial(entry.name, entry.program, task.method, "latency", options, is_watched=True)
    callers = (os.cpu_count() or 1) if task.objective == "throughput" else 1
    return Trial(entry.name, entry.program, task.method, task.objective, options, callers=callers)


def _examined(task: bundle.Task, seats: Mapping[str, Seat], found: dict[str, float]) -> Examined:
    """What is wrong with the results of programs."""
    expected = task.expected
    if expected is None:
        return Examined({}, {})
    programs = {e.name: e.program for e in task.entries}

    def near(name: str, seat: Seat) -> float:
        given = [results(seat, programs[name], task.method, call) for call in task.calls]
        return sqnr_db([[numbers(*result) for result in call] for call in given], expected)

    return examined(seats, near, task.bound, found)
