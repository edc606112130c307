"""Measure programs in rounds, and eliminate those that are slower than the fastest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from delegate.placement.runtime.costs import Record
from delegate.placement.runtime.noise import MIN_ROUNDS, NoiseFilter, Round, ratio
from delegate.placement.runtime.trials import (
    BUDGET_OVER,
    ProgramRunner,
    RoundResult,
    RoundsOver,
    RunnerFactory,
    Trial,
    TrialFailed,
)
from delegate.report.measured import Interval

MAX_ROUNDS = 40
WATCHED_ROUNDS = 9  # of programs whose steps are timed
_TABLE_ROUNDS = 5  # of programs that are only in the table
SAME = 0.01  # plans with a smaller relative difference are equal
NOISE_FACTOR = 1.3  # other processes may slow down one plan this much more than another
_FAR = ((1, 8.0), (3, 2.0))  # (rounds, factor): drop programs that are slower by the factor in each of these rounds

T = TypeVar("T")
NextRound = Callable[[Mapping[str, Record]], Collection[str]]
Check = Callable[[Mapping[str, ProgramRunner]], Mapping[str, str]]


def measure_rounds(
    trials: Sequence[Trial],
    factory: RunnerFactory,
    go_on: NextRound,
    has_time: Callable[[], bool],
    check: Check | None = None,
    noise_filter: NoiseFilter | None = None,
) -> dict[str, Record]:
    """Measure programs in rounds and return their records by name.

    Each round measures every program once, in alternating order. Rounds in which other processes used the cores do not
    count. A program that fails leaves the measurement, and its record has the reason.

    Args:
        trials: the programs.
        factory: starts them.
        go_on: receives the records after every round; returns the names to measure in the next one.
        has_time: returns True if another step may begin.
        check: receives the running programs before the first round; returns those to drop, with the reason.
        noise_filter: the waiting times of earlier measurements.
    """
    measurement = _Measurement({trial.name: Record() for trial in trials}, noise_filter or NoiseFilter())
    with contextlib.ExitStack() as stack:
        for trial in trials:
            if runner := measurement.attempt(trial.name, _start, trial, factory, has_time):
                stack.callback(runner.close)
                measurement.runners[trial.name] = runner
        measurement.prepare(check)
        goes_on = True
        while goes_on and has_time() and (names := measurement.running(go_on)):
            goes_on = measurement.measure(names)
    return measurement.records


class _Measurement:
    """The running programs of a measurement, and their rounds.

    Args:
        records: Name -> the record, which receives the rounds.
        noise_filter: decides which rounds count.
    """

    def __init__(self, records: dict[str, Record], noise_filter: NoiseFilter) -> None:
        self.records, self.runners = records, dict[str, ProgramRunner]()
        self._noise_filter, self._rounds = noise_filter, list[dict[str, RoundResult]]()

    def attempt(self, name: str, work: Callable[..., T], *args: object) -> T | None:
        """Return the result of some work on a program; None if the program fails, which then leaves."""
        try:
            return work(*args)
        except TrialFailed as error:
            self.records[name].failure = str(error)
            self.runners.pop(name, None)
            return None

    def prepare(self, check: Check | None) -> None:
        """Wait until every program has run once, and drop those that fail the check."""
        for name, runner in list(self.runners.items()):
            self.attempt(name, runner.ready)
        for name, why in check(dict(self.runners)).items() if check is not None else ():
            self.records[name].failure = why
            del self.runners[name]

    def running(self, go_on: NextRound) -> list[str]:
        """Return the programs of the next round."""
        return [name for name in go_on(self.records) if name in self.runners]

    def measure(self, names: Sequence[str]) -> bool:
        """Measure a round, every second one in reverse order; return False if the deadline ended it."""
        results, is_over = dict[str, RoundResult](), False
        try:
            for name in reversed(names) if len(self._rounds) % 2 else names:
                if (result := self.attempt(name, self.runners[name].measure_round)) is not None:
                    results[name] = result
        except RoundsOver:
            is_over = True
        self._rounds.append(results)
        self._noise_filter.add(results)
        _update_records(self.records, self._rounds, self._noise_filter)
        return not is_over


class _DeadlineRunner:
    """A runner that refuses requests after the deadline."""

    def __init__(self, runner: ProgramRunner, has_time: Callable[[], bool]) -> None:
        self._runner, self._has_time, self.close = runner, has_time, runner.close

    def ready(self) -> None:
        _require(self._has_time)
        self._runner.ready()

    def measure_round(self) -> RoundResult:
        if not self._has_time():
            raise RoundsOver
        return self._runner.measure_round()

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        _require(self._has_time)
        return self._runner.outputs(leaves)


def _start(trial: Trial, factory: RunnerFactory, has_time: Callable[[], bool]) -> ProgramRunner:
    _require(has_time)
    return _DeadlineRunner(factory.start(trial), has_time)


def _require(has_time: Callable[[], bool]) -> None:
    if not has_time():
        raise TrialFailed(BUDGET_OVER)


def _update_records(records: Mapping[str, Record], rounds: Sequence[Round], noise_filter: NoiseFilter) -> None:
    """Write the rounds that count into the records. A program without such rounds has all its rounds."""
    counting, is_quiet = noise_filter.select(rounds)
    for name, record in records.items():
        own, every = ([results[name] for results in each if name in results] for each in (counting, rounds))
        results = own or every
        record.rounds[:] = [result.cost for result in results]
        record.steps[:] = [result.steps for result in results if result.steps]
        record.busy, record.is_quiet = len(every) - len(results), is_quiet


def fixed_rounds(count: int) -> NextRound:
    """Return a rule for a fixed number of rounds with each program. Twice as many more may be disturbed."""
    return lambda records: [n for n, r in records.items() if len(r.rounds) < count and r.busy < 2 * count]


class EliminationTest:
    """A rule that measures programs until it is known if they are slower than the fastest one.

    It drops programs that are slower beyond the noise, or far slower from the start. While other processes use the
    cores it drops none.

    Args:
        table_only: names of programs that are not compared, and get a few rounds, and which may grow later.
        most: the maximum number of rounds.
    """

    def __init__(self, table_only: Collection[str] = (), most: int = MAX_ROUNDS) -> None:
        self._most, self._table_only = most, table_only
        self._out: set[str] = set()

    def __call__(self, records: Mapping[str, Record]) -> list[str]:
        """Return the names to measure in the next round; none if all is known."""
        left = {name: r for name, r in records.items() if not r.failure and name not in self._out}
        extra = [n for n, r in left.items() if n in self._table_only and len(r.rounds) < _TABLE_ROUNDS]
        running = {name: r for name, r in left.items() if name not in self._table_only}
        costs = {name: cost for name, r in running.items() if (cost := r.cost) is not None}
        if len(costs) < len(running):
            return [*running, *extra]
        if not costs:
            return extra
        best = min(costs, key=costs.__getitem__)
        if not all(r.is_quiet for r in running.values()):
            return [*running, *extra]
        known = {name: ratio(r.rounds, running[best].rounds) for name, r in running.items() if name != best}
        self._out |= {n for n, i in known.items() if i.low > 1 or _is_far(running[n], running[best])}
        undecided = [n for n, i in known.items() if n not in self._out and not _is_same(i)]
        goes_on = undecided and len(running[best].rounds) < self._most
        return [best, *undecided, *extra] if goes_on else extra


def measure_until_decided(
    trials: Sequence[Trial],
    factory: RunnerFactory,
    check: Check,
    table_only: Collection[str],
    goes_on: Callable[[], bool],
    has_time: Callable[[], bool],
    noise_filter: NoiseFilter | None = None,
) -> dict[str, Record]:
    """Measure programs of one objective until the best is known, and return their records.

    Args:
        trials, factory, has_time, check, noise_filter: see `measure_rounds`.
        table_only: see `EliminationTest`; the check may add to it.
        goes_on: returns True if there is time for more rounds than an interval requires.
    """
    runs = all(trial.objective == "latency" for trial in trials)
    select_next = EliminationTest(table_only) if runs else fixed_rounds(MIN_ROUNDS)

    def go_on(records: Mapping[str, Record]) -> Collection[str]:
        names = select_next(records)
        enough = all(len(records[name].rounds) + records[name].busy >= MIN_ROUNDS for name in names)
        return () if enough and not goes_on() else names

    return measure_rounds(trials, factory, go_on, has_time, check, noise_filter)


def _is_far(record: Record, best: Record) -> bool:
    """Return True if a program is far slower, so that no more rounds are necessary."""
    pairs = list(zip(record.rounds, best.rounds, strict=False))
    return any(len(pairs) >= rounds and all(a > times * b for a, b in pairs) for rounds, times in _FAR)


def _is_same(interval: Interval) -> bool:
    return interval.low > 1 - SAME and interval.high < 1 + SAME


def beats(record: Record, other: Record) -> bool:
    """Return True if a record costs less than another, beyond the noise and the effect of other processes.

    With fewer rounds than an interval requires, the difference must exceed the possible effect of other processes.
    """
    known = ratio(record.rounds, other.rounds)
    has_interval = min(len(record.rounds), len(other.rounds)) >= MIN_ROUNDS
    is_sure = has_interval and record.is_quiet and other.is_quiet
    return known.ratio < (1 if is_sure else 1 / NOISE_FACTOR) and (known.high < 1 or not has_interval)


def choose_winner(records: Mapping[str, Record], names: Sequence[str]) -> str | None:
    """Return the first program that no other one beats beyond the noise.

    Args:
        records: The records that one measurement made.
        names: the programs to choose from, the simplest first.

    Returns:
        None if none of them ran.
    """
    ran = {name: records[name] for name in names if records[name].rounds and not records[name].failure}
    unbeaten = (n for n, r in ran.items() if not any(beats(other, r) for other in ran.values()))
    return next(unbeaten, min(ran, key=lambda n: ran[n].cost or 0.0, default=None))
