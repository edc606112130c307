"""Measure the programs of a bundle on this machine. Without torch."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from delegate.cache.runtime.environment import machine
from delegate.errors import ProgramError
from delegate.placement.runtime.accuracy_check import read_results
from delegate.placement.runtime.elimination import Measurement
from delegate.placement.runtime.trials import (
    ProcessRunnerFactory,
    ProgramRunner,
    answer_timeout,
    seconds_until,
)
from delegate_remote.runtime.accuracy import sqnr_db, widen_bfloat16
from delegate_remote.runtime.bundle import Task, describe_arguments, digest, read
from delegate_remote.runtime.costs import Costs, MethodCosts, ProgramCosts

_COMPARISON_SHARE = 0.5  # of the budget; the rest is for programs whose steps are timed


def measure(
    path: str | os.PathLike[str],
    *,
    kernels: Sequence[str] | None = None,
    budget: float | None = None,
    trust_code: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Measure the plans of a bundle, each in a process of its own, until the best is known.

    Then measure the programs whose parts are timed.
    """
    with tempfile.TemporaryDirectory(prefix="delegate-") as folder:
        tasks = read(path, Path(folder))
        if budget is not None and not 0 < budget < math.inf:
            raise ProgramError(
                f"a budget of {budget:g} s is not a valid budget", remedy="give a positive number of seconds"
            )
        methods, begun = {}, time.monotonic()
        for number, task in enumerate(tasks):
            progress(f"{task.method}: measuring {', '.join(t.name for t in task.trials)}")
            seconds = task.budget if budget is None else budget / len(tasks)
            own = Path(folder) / f"{number}-run"
            own.mkdir()
            end = min(begun + (number + 1) * seconds, time.monotonic() + seconds)
            limits = (answer_timeout(seconds), seconds_until(end))
            factory = ProcessRunnerFactory(own, task.calls[0], kernels, *limits, trust_code=trust_code)
            methods[task.method] = _measure_method(task, factory, seconds, end)
        return Costs(machine(), methods)


def _measure_method(task: Task, factory: ProcessRunnerFactory, budget: float, end: float) -> MethodCosts:
    start = time.monotonic()
    timed, whole = ([t for t in task.trials if t.is_watched == is_timed] for is_timed in (True, False))
    plans = {t.name: t.program for t in task.trials}

    def compare(name: str, runner: ProgramRunner) -> float:
        results = [read_results(runner, plans[name], task.method, call) for call in task.calls]
        return sqnr_db([[widen_bfloat16(*result) for result in call] for call in results], task.expected or ())

    def has_time() -> bool:
        return time.monotonic() < end

    def is_racing() -> bool:
        return time.monotonic() < end - (budget * (1 - _COMPARISON_SHARE) if timed else 0)

    measurement = Measurement(factory, has_time, None if task.expected is None else compare, task.bound)
    records = measurement.race(whole, is_racing) | measurement.watch(timed)
    costs = [ProgramCosts(digest(t.program), records[t.name], measurement.sqnr_db.get(t.name)) for t in task.trials]
    programs = dict(zip(plans, costs, strict=True))
    inputs, spent = tuple(describe_arguments(task.calls[0])), round(time.monotonic() - start, 3)
    return MethodCosts(task.objective, inputs, budget, spent, programs)
