"""Test that confidence intervals are correct, and that measurements end with the best choice."""

from __future__ import annotations

import math
import random

import pytest

from delegate.placement.runtime.accuracy_check import AccuracyResult, check_accuracy
from delegate.placement.runtime.elimination import (
    CONFIDENCE,
    MIN_ROUNDS,
    EliminationTest,
    NoiseFilter,
    Record,
    beats,
    choose_winner,
    ratio,
)
from delegate.placement.runtime.trials import RoundResult


def test_an_interval_is_of_the_median() -> None:
    few = ratio([1.0, 2.0], [2.0, 2.0])
    assert (few.ratio, few.low, few.high) == (0.75, 0.0, math.inf)
    least = ratio([0.9 + 0.01 * i for i in range(MIN_ROUNDS)], [1.0] * MIN_ROUNDS)
    assert least.low == pytest.approx(0.9)
    assert least.high == pytest.approx(0.97)
    noisy = ratio([1.0, 1.1] * MIN_ROUNDS, [1.0] * 2 * MIN_ROUNDS)
    assert noisy.low <= 1 <= noisy.high
    assert ratio([], []).high == math.inf
    assert ratio([0.0], [0.0]).ratio == 1.0


@pytest.mark.parametrize("count", [8, 15, 40])
def test_intervals_hold_the_median_as_often_as_they_say(count: int) -> None:
    """Noise with a long tail; the true ratio of the medians is 1."""
    draw = random.Random(count)
    missed = 0
    for _ in range(2000):
        pairs = [(draw.lognormvariate(0, 0.3), draw.lognormvariate(0, 0.3)) for _ in range(count)]
        interval = ratio([a for a, _ in pairs], [b for _, b in pairs])
        missed += not interval.low <= 1 <= interval.high
    assert missed <= 2000 * (1 - CONFIDENCE) * 1.6


def test_the_simpler_plan_is_taken_unless_another_is_better_beyond_the_noise() -> None:
    noisy = Record([1.0, 1.2] * MIN_ROUNDS)
    other = Record([1.2, 0.95] * MIN_ROUNDS)
    fast = Record([0.8, 0.9] * MIN_ROUNDS)
    failed = Record([0.1] * MIN_ROUNDS, failure="it crashed")
    records = {"noisy": noisy, "other": other, "fast": fast, "failed": failed, "never": Record()}
    assert choose_winner(records, ["noisy", "other", "never"]) == "noisy"
    assert choose_winner(records, ["other", "noisy"]) == "other"
    assert choose_winner(records, ["noisy", "failed", "other", "fast"]) == "fast"
    assert choose_winner(records, ["failed", "never"]) is None


@pytest.mark.parametrize(("rounds", "times", "is_known"), [(1, 1.5, True), (1, 1.2, False), (5, 1.4, True)])
@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_few_rounds_tell_what_is_far_behind(rounds: int, times: float, is_known: bool, is_quiet: bool) -> None:
    """A budget that was used up left a plan at 1.67 of another, since an interval needs more rounds."""
    first, other = Record([times, times * 1.1] * 3, is_quiet=is_quiet), Record([1.0, 1.05] * 3, is_quiet=is_quiet)
    del first.rounds[rounds:], other.rounds[rounds:]
    assert choose_winner({"first": first, "other": other}, ["first", "other"]) == ("other" if is_known else "first")


def test_one_that_beats_the_first_alone_is_not_taken() -> None:
    """A is beaten by C, B is not: B is simpler than C."""
    a, b, c = Record([1.0] * MIN_ROUNDS), Record([0.9, 1.05] * (MIN_ROUNDS // 2)), Record([0.95] * MIN_ROUNDS)
    assert beats(c, a)
    assert not beats(c, b)
    assert choose_winner({"a": a, "b": b, "c": c}, ["a", "b", "c"]) == "b"


def test_a_race_ends_when_all_is_known() -> None:
    elimination, records = EliminationTest(), {"a": Record(), "b": Record(), "c": Record()}
    costs = {"a": 1.0, "b": 1.1, "c": 3.0}
    while names := elimination(records):
        for name in names:
            records[name].rounds.append(costs[name])
    counts = {name: len(r.rounds) for name, r in records.items()}
    assert counts == {"a": MIN_ROUNDS, "b": MIN_ROUNDS, "c": 3}  # c was far behind from the start
    assert choose_winner(records, ["c", "b", "a"]) == "a"


def test_a_race_of_equals_ends_when_they_are_known_to_be() -> None:
    elimination, records = EliminationTest(most=100), {"a": Record(), "b": Record()}
    while names := elimination(records):
        for name in names:
            records[name].rounds.append(1.0 if name == "a" else 1.001)
    assert len(records["a"].rounds) == MIN_ROUNDS


def test_what_is_in_the_table_alone_beats_nobody() -> None:
    elimination, records = EliminationTest(table_only={"x"}), {"a": Record(), "b": Record(), "x": Record()}
    while names := elimination(records):
        for name in names:
            records[name].rounds.append({"a": 1.0, "b": 1.3, "x": 0.1}[name])
    assert 0 < len(records["x"].rounds) < MIN_ROUNDS
    assert len(records["b"].rounds) == MIN_ROUNDS


def test_a_library_that_waits_for_its_own_threads_is_not_disturbed() -> None:
    noise_filter, draw = NoiseFilter(), random.Random(0)
    rounds = [{"a": RoundResult(1.0, {}, 0.001), "b": RoundResult(1.0, {}, draw.uniform(0.6, 0.75))} for _ in range(20)]
    for results in rounds:
        noise_filter.add(results)
    assert noise_filter.select(rounds) == (rounds, True)
    busy = [
        {"a": RoundResult(2.0, {}, 0.5), "b": RoundResult(1.0, {}, 0.7)},
        {"a": RoundResult(1.0, {}, 0.0), "b": RoundResult(2.0, {}, 1.5)},
    ]
    for results in busy:
        noise_filter.add(results)
    assert noise_filter.select([*rounds, *busy]) == (rounds, True)
    few, is_quiet = noise_filter.select([*rounds[:2], *busy * 5])
    assert (len(few) >= MIN_ROUNDS, few[:2], is_quiet) == (True, rounds[:2], False)


def judged(figures: dict[str, float], bound: float | None = None) -> AccuracyResult:
    return check_accuracy(dict.fromkeys(figures), lambda name, runner: figures[name], bound)


def test_what_is_out_by_its_results() -> None:
    """Also where all are wrong alike: results of another shape, or NaN where torch has numbers, are no results."""
    assert set(judged({"a": 140.0, "b": 70.0}).failed) == {"b"}
    assert set(judged({"a": 60.0, "b": 50.0}).failed) == set()
    assert set(judged({"a": -math.inf, "b": -math.inf}).failed) == {"a", "b"}
    assert set(judged({"a": math.nan, "b": math.nan}).failed) == set()
    assert set(judged({"a": math.nan, "b": 30.0}, 40.0).inaccurate) == {"a", "b"}
