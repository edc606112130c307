"""Programs that take turns in rounds, until what is asked of them is known or the time is over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from delegate.measured import Interval
from delegate.placement.calm import Calm, Round
from delegate.placement.costs import Record
from delegate.placement.statistics import LEAST, ratio
from delegate.placement.trials import LATE, Bench, RoundsOver, Seat, Trial, TrialFailed, Turn

MOST = 40  # rounds
SURVEYED = 9  # rounds of programs whose steps are timed
_BESIDE = 5  # rounds of what is in the table alone
SAME = 0.01  # two plans whose difference is less for sure are the same
DOUBT = 1.3  # other work may make a plan take so many times as long beside another
_FAR = ((1, 8.0), (3, 2.0))  # after so many rounds what takes so many times as long in each of them is out

T = TypeVar("T")
GoOn = Callable[[Mapping[str, Record]], Collection[str]]
Check = Callable[[Mapping[str, Seat]], Mapping[str, str]]


def measured(
    trials: Sequence[Trial],
    bench: Bench,
    go_on: GoOn,
    has_time: Callable[[], bool],
    check: Check | None = None,
    calm: Calm | None = None,
) -> dict[str, Record]:
    """What rounds of these programs show, by name. One that fails is out, with the reason in its record.

    In each round every program has one turn; the order is turned around from round to round. Rounds in which other work
    had the cores do not count.

    Args:
        trials: that are compared.
        bench: where they run.
        go_on: is told what is known after every round; gives the names of those that another round is for.
        has_time: whether anything may begin: a program, a look at its results, a turn.
        check: is given all that run before the first round; says which of them are out, and why.
        calm: what is known of how long programs wait for a core.
    """
    records = {trial.name: Record() for trial in trials}
    seats: dict[str, Seat] = {}
    taken: list[dict[str, Turn]] = []
    calm = Calm() if calm is None else calm

    def tried(name: str, work: Callable[..., T], *args: object) -> T | None:
        try:
            return work(*args)
        except TrialFailed as error:
            records[name].failure = str(error)
            seats.pop(name, None)
            return None

    with contextlib.ExitStack() as stack:
        for trial in trials:
            seat = tried(trial.name, _seat, trial, bench, has_time)
            if seat is not None:
                stack.callback(seat.close)
                seats[trial.name] = seat
        for name, seat in list(seats.items()):
            tried(name, seat.ready)
        for name, why in check(dict(seats)).items() if check is not None else ():
            records[name].failure = why
            del seats[name]
        is_turned = is_over = False
        while not is_over and has_time() and (names := [name for name in go_on(records) if name in seats]):
            taken.append({})
            try:
                for name in reversed(names) if is_turned else names:
                    turn = tried(name, seats[name].turn)
                    if turn is not None:
                        taken[-1][name] = turn
            except RoundsOver:
                is_over = True
            calm.add(taken[-1])
            _write(records, taken, calm)
            is_turned = not is_turned
    return records


class _InTime:
    """A seat that nothing is asked of once the time is over."""

    def __init__(self, seat: Seat, has_time: Callable[[], bool]) -> None:
        self._seat, self._has_time, self.close = seat, has_time, seat.close

    def ready(self) -> None:
        _require(self._has_time)
        self._seat.ready()

    def turn(self) -> Turn:
        if not self._has_time():
            raise RoundsOver
        return self._seat.turn()

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        _require(self._has_time)
        return self._seat.outputs(leaves)


def _seat(trial: Trial, bench: Bench, has_time: Callable[[], bool]) -> Seat:
    _require(has_time)
    return _InTime(bench.seat(trial), has_time)


def _require(has_time: Callable[[], bool]) -> None:
    if not has_time():
        raise TrialFailed(LATE)


def _write(records: Mapping[str, Record], taken: Sequence[Round], calm: Calm) -> None:
    """Put what counts of the rounds into records. A program of which nothing would count has all it took part in."""
    counting, is_calm = calm.counting(taken)
    for name, record in records.items():
        own, every = ([turns[name] for turns in each if name in turns] for each in (counting, taken))
        turns = own or every
        record.rounds[:] = [turn.cost for turn in turns]
        record.steps[:] = [turn.steps for turn in turns if turn.steps]
        record.busy, record.is_calm = len(every) - len(turns), is_calm


def rounds(count: int) -> GoOn:
    """So many rounds of all, for which twice as many more may be busy."""
    return lambda records: [n for n, r in records.items() if len(r.rounds) < count and r.busy < 2 * count]


class Race:
    """Goes on with programs until it is known whether they are slower than the fastest.

    Those that are slower beyond the noise are out, and so are those that are far behind from the start. It goes on with
    all as long as other work has the cores.

    Args:
        beside: names of those that no one is compared with, which may be added later: they get a few rounds.
        most: rounds.
    """

    def __init__(self, beside: Collection[str] = (), most: int = MOST) -> None:
        self._most, self._beside = most, beside
        self._out: set[str] = set()

    def __call__(self, records: Mapping[str, Record]) -> list[str]:
        """The names of those that another round is for; none where all is known."""
        left = {name: r for name, r in records.items() if not r.failure and name not in self._out}
        beside = [n for n, r in left.items() if n in self._beside and len(r.rounds) < _BESIDE]
        running = {name: r for name, r in left.items() if name not in self._beside}
        costs = {name: cost for name, r in running.items() if (cost := r.cost) is not None}
        if len(costs) < len(running):
            return [*running, *beside]
        if not costs:
            return beside
        best = min(costs, key=costs.__getitem__)
        if not all(r.is_calm for r in running.values()):
            return [*running, *beside]
        known = {name: ratio(r.rounds, running[best].rounds) for name, r in running.items() if name != best}
        self._out |= {n for n, i in known.items() if i.low > 1 or _is_far(running[n], running[best])}
        undecided = [n for n, i in known.items() if n not in self._out and not _is_same(i)]
        goes_on = undecided and len(running[best].rounds) < self._most
        return [best, *undecided, *beside] if goes_on else beside


def compared(
    trials: Sequence[Trial],
    bench: Bench,
    check: Check,
    beside: Collection[str],
    goes_on: Callable[[], bool],
    has_time: Callable[[], bool],
    calm: Calm | None = None,
) -> dict[str, Record]:
    """What rounds show of programs of one objective, until it is known which is the best.

    Args:
        trials, bench, has_time, check, calm: see `measured`.
        beside: see `Race`; the check may add to it.
        goes_on: whether there is time for more than the rounds that an interval needs.
    """
    runs = all(trial.objective in ("latency", "throughput") for trial in trials)
    wanted = Race(beside) if runs else rounds(LEAST)

    def go_on(records: Mapping[str, Record]) -> Collection[str]:
        names = wanted(records)
        enough = all(len(records[name].rounds) + records[name].busy >= LEAST for name in names)
        return () if enough and not goes_on() else names

    return measured(trials, bench, go_on, has_time, check, calm)


def _is_far(record: Record, best: Record) -> bool:
    """Whether no more rounds are needed to know that it is slower."""
    pairs = list(zip(record.rounds, best.rounds, strict=False))
    return any(len(pairs) >= rounds and all(a > times * b for a, b in pairs) for rounds, times in _FAR)


def _is_same(interval: Interval) -> bool:
    return interval.low > 1 - SAME and interval.high < 1 + SAME


def beats(record: Record, other: Record) -> bool:
    """Whether it costs less than the other beyond the noise, and beyond what other work may do where there was any.

    In fewer rounds than an interval needs, which are those there was time for, it is what other work hardly does.
    """
    known = ratio(record.rounds, other.rounds)
    has_interval = min(len(record.rounds), len(other.rounds)) >= LEAST
    is_sure = has_interval and record.is_calm and other.is_calm
    return known.ratio < (1 if is_sure else 1 / DOUBT) and (known.high < 1 or not has_interval)


def winner(records: Mapping[str, Record], names: Sequence[str]) -> str | None:
    """The program to take: the first that none of the others beats beyond the noise.

    Args:
        records: of one measurement.
        names: of those that may be taken, the simplest first.

    Returns:
        None where none of them ran.
    """
    ran = {name: records[name] for name in names if records[name].rounds and not records[name].failure}
    unbeaten = (n for n, r in ran.items() if not any(beats(other, r) for other in ran.values()))
    return next(unbeaten, min(ran, key=lambda n: ran[n].cost or 0.0, default=None))
