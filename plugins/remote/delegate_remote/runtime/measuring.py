"""Measure the programs of a bundle on this machine. Without torch."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from delegate.cache.runtime.environment import machine
from delegate.errors import ProgramError
from delegate.placement.runtime.accuracy_check import AccuracyResult, check_accuracy, read_results
from delegate.placement.runtime.elimination import (
    WATCHED_ROUNDS,
    NoiseFilter,
    fixed_rounds,
    in_time,
    measure_rounds,
    measure_until_decided,
)
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
    sqnr_db_of: dict[str, float] = {}
    inaccurate: dict[str, str] = {}

    def check(runners: Mapping[str, ProgramRunner]) -> Mapping[str, str]:
        checked = _check_results(task, runners, has_time)
        inaccurate.update(checked.inaccurate)
        sqnr_db_of.update(checked.sqnr_db)
        return checked.failed

    def has_time() -> bool:
        return time.monotonic() < end

    def is_racing() -> bool:
        return time.monotonic() < end - (budget * (1 - _COMPARISON_SHARE) if timed else 0)

    noise_filter = NoiseFilter()
    records = measure_until_decided(whole, factory, check, inaccurate, is_racing, has_time, noise_filter)
    records |= measure_rounds(timed, factory, fixed_rounds(WATCHED_ROUNDS), has_time, noise_filter=noise_filter)
    costs = [ProgramCosts(digest(t.program), records[t.name], sqnr_db_of.get(t.name)) for t in task.trials]
    programs = dict(zip((t.name for t in task.trials), costs, strict=True))
    inputs, spent = tuple(describe_arguments(task.calls[0])), round(time.monotonic() - start, 3)
    return MethodCosts(task.objective, inputs, budget, spent, programs)


def _check_results(task: Task, runners: Mapping[str, ProgramRunner], has_time: Callable[[], bool]) -> AccuracyResult:
    """Compare the results of programs with torch's results in the bundle."""
    expected = task.expected
    if expected is None:
        return AccuracyResult({}, {}, {})
    programs = {t.name: t.program for t in task.trials}

    def measure_sqnr_db(name: str, runner: ProgramRunner) -> float:
        results = in_time(
            has_time, lambda: [read_results(runner, programs[name], task.method, call) for call in task.calls]
        )
        return sqnr_db([[widen_bfloat16(*result) for result in call] for call in results], expected)

    return check_accuracy(runners, measure_sqnr_db, task.bound)
