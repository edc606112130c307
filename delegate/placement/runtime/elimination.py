"""Measure programs in rounds, and eliminate those that are slower than the fastest, also on a noisy machine.

Other processes slow down some libraries more than others, so the ratio of two paired rounds does not cancel the effect.
The measure is how long the threads of a program were ready without a core, relative to their usual waiting time. The
usual time is not 0, since a library with more threads than cores waits for its own threads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from statistics import median
from typing import TypeVar

from delegate.common.field_checks import Amount
from delegate.placement.runtime.accuracy_check import Compare, check_accuracy
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

CONFIDENCE = 0.99  # of an interval; repeated tests after every round reduce it
MIN_ROUNDS = 8  # fewer rounds have no interval of this confidence
_MORE, _OWN = 0.1, 1.25  # a disturbed round waits longer than 1.25 times the usual share, plus 0.1
_LOW, _LEAST = 8, 3  # one in 8 rounds may wait less than the usual share, but fewer than 3 in all

T = TypeVar("T")
Round = Mapping[str, RoundResult]


def ratio(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the ratio of two costs, from paired rounds, ignoring extra rounds of either.

    The interval is of the median, from order statistics. For any noise the number of rounds below it is binomial.
    """
    ratios = sorted(a / b if b else math.inf if a else 1.0 for a, b in zip(first, second, strict=False))
    if not ratios:
        return Interval(1.0, 0.0, math.inf)
    middle = (ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2
    rank = _rank(len(ratios))
    if rank is None:
        return Interval(middle, 0.0, math.inf)
    return Interval(middle, ratios[rank], ratios[-1 - rank])


@cache
def _rank(count: int) -> int | None:
    """Return how many values may be cut off at each end of this many, or None if there are too few."""
    below, best = 0.0, None
    for rank in range(count // 2):
        below += math.comb(count, rank) / 2**count
        if 2 * below > 1 - CONFIDENCE:
            break
        best = rank
    return best


class NoiseFilter:
    """The waiting times of programs over all measurements of one method.

    One quiet moment is enough to know the usual times.
    """

    def __init__(self) -> None:
        self._waited: dict[str, list[float]] = {}

    def add(self, results: Round) -> None:
        """Add the waiting times of a round."""
        for name, result in results.items():
            self._waited.setdefault(name, []).append(result.waited)

    def select(self, rounds: Sequence[Round]) -> tuple[list[Round], bool]:
        """Return the rounds that count, and True if they are quiet.

        If fewer are quiet than an interval requires, return the least disturbed rounds.
        """
        usual = {n: sorted(waited)[min(len(waited) // _LOW, _LEAST - 1)] for n, waited in self._waited.items()}
        beyond = [
            max((r.waited - _OWN * usual[n] - _MORE for n, r in results.items()), default=0.0) for results in rounds
        ]
        quiet = [results for results, busy in zip(rounds, beyond, strict=True) if busy <= 0]
        if len(quiet) >= min(MIN_ROUNDS, len(rounds)):
            return quiet, True
        most = sorted(beyond)[min(MIN_ROUNDS, len(rounds)) - 1]
        return [results for results, busy in zip(rounds, beyond, strict=True) if busy <= most], False


@dataclass(slots=True)
class Record:
    """The rounds of one program. Round i of two records of one measurement is a pair.

    Args:
        rounds: seconds per call, or bytes: the median over each round's calls.
        steps: Seconds per step, for each watched round. A step has the name of its first value or of its partition.
        failure: why the program stopped, e.g. "was killed by SIGSEGV", but earlier rounds stay.
        busy: number of rounds that do not count, since other processes used the cores.
        is_quiet: True if no other process used the cores in the rounds that count.
    """

    rounds: list[Amount] = field(default_factory=list)
    steps: list[Mapping[str, Amount]] = field(default_factory=list)
    failure: str = ""
    busy: int = 0
    is_quiet: bool = True

    @property
    def cost(self) -> float | None:
        """The median of the rounds, or None without rounds."""
        return median(self.rounds) if self.rounds else None


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
    records = {trial.name: Record() for trial in trials}
    runners: dict[str, ProgramRunner] = {}
    rounds: list[dict[str, RoundResult]] = []
    noise_filter, is_over = noise_filter or NoiseFilter(), False
    attempt = partial(_attempt, records, runners)
    with contextlib.ExitStack() as stack:
        for trial in trials:
            runner = attempt(trial.name, partial(in_time, has_time, partial(factory.start, trial)))
            if runner is not None:
                stack.callback(runner.close)
                runners[trial.name] = runner
        for name, runner in list(runners.items()):
            attempt(name, partial(in_time, has_time, runner.ready))
        for name, why in check(dict(runners)).items() if check is not None else ():
            records[name].failure = why
            del runners[name]
        while not is_over and has_time() and (names := [name for name in go_on(records) if name in runners]):
            ordered = reversed(names) if len(rounds) % 2 else names
            works = {name: partial(attempt, name, runners[name].measure_round) for name in ordered}
            results, is_over = _measure_round(works, has_time)
            rounds.append(results)
            noise_filter.add(results)
            _update_records(records, rounds, noise_filter)
    return records


def _attempt(
    records: Mapping[str, Record], runners: dict[str, ProgramRunner], name: str, work: Callable[[], T]
) -> T | None:
    """Return the result of some work on a program; None if the program fails, which then leaves."""
    try:
        return work()
    except TrialFailed as error:
        records[name].failure = str(error)
        runners.pop(name, None)
        return None


def _measure_round(
    works: Mapping[str, Callable[[], RoundResult | None]], has_time: Callable[[], bool]
) -> tuple[dict[str, RoundResult], bool]:
    """Return the results of one round, without programs that fail, and True if the deadline ended it."""
    results: dict[str, RoundResult] = {}
    for name, work in works.items():
        try:
            result = work() if has_time() else None
        except RoundsOver:
            return results, True
        if result is not None:
            results[name] = result
    return results, False


def in_time(has_time: Callable[[], bool], work: Callable[[], T]) -> T:
    """Return the result of some work; raise TrialFailed if there is no time for it."""
    if not has_time():
        raise TrialFailed(BUDGET_OVER)
    return work()


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


class Measurement:
    """The measurement of one method's programs, whose results are compared before their first round.

    Args:
        factory: starts the programs.
        has_time: returns True if another step may begin.
        sqnr_db_of: see `check_accuracy`; None: results are not compared.
        bound: see `check_accuracy`.

    Attributes:
        inaccurate, sqnr_db: see `AccuracyResult`; of all programs so far.
    """

    def __init__(
        self, factory: RunnerFactory, has_time: Callable[[], bool], sqnr_db_of: Compare | None, bound: float | None
    ) -> None:
        self._factory, self._has_time, self._sqnr_db_of, self._bound = factory, has_time, sqnr_db_of, bound
        self._noise_filter = NoiseFilter()
        self.inaccurate: dict[str, str] = {}
        self.sqnr_db: dict[str, float] = {}

    def race(self, trials: Sequence[Trial], goes_on: Callable[[], bool]) -> dict[str, Record]:
        """Measure programs of one objective until the best is known, and return their records.

        Args:
            trials: the programs.
            goes_on: returns True if there is time for more rounds than an interval requires.
        """
        runs = all(trial.objective == "latency" for trial in trials)
        select_next = EliminationTest(self.inaccurate) if runs else fixed_rounds(MIN_ROUNDS)

        def go_on(records: Mapping[str, Record]) -> Collection[str]:
            names = select_next(records)
            enough = all(len(records[name].rounds) + records[name].busy >= MIN_ROUNDS for name in names)
            return () if enough and not goes_on() else names

        return measure_rounds(trials, self._factory, go_on, self._has_time, self._check, self._noise_filter)

    def watch(self, trials: Sequence[Trial], has_time: Callable[[], bool] | None = None) -> dict[str, Record]:
        """Measure programs whose steps are timed, and return their records; see `measure_rounds`."""
        rounds, has_time = fixed_rounds(WATCHED_ROUNDS), has_time or self._has_time
        return measure_rounds(trials, self._factory, rounds, has_time, noise_filter=self._noise_filter)

    def _check(self, runners: Mapping[str, ProgramRunner]) -> Mapping[str, str]:
        """Compare the results of programs, and return those that fail with the reason."""
        if (sqnr_db_of := self._sqnr_db_of) is None:
            return {}
        checked = check_accuracy(
            runners, lambda name, runner: in_time(self._has_time, partial(sqnr_db_of, name, runner)), self._bound
        )
        self.inaccurate.update(checked.inaccurate)
        self.sqnr_db.update(checked.sqnr_db)
        return checked.failed


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
