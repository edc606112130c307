"""Measure on a noisy machine: confidence intervals of paired rounds, and the selection of low-noise rounds.

Other processes slow down some libraries more than others, so the ratio of two paired rounds does not cancel the effect.
The measure is how long the threads of a program were ready without a core, relative to their usual waiting time. The
usual time is not 0, since a library with more threads than cores waits for its own threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from delegate.placement.runtime.trials import RoundResult
from delegate.report.measured import Interval

CONFIDENCE = 0.99  # of an interval; repeated tests after every round reduce it
MIN_ROUNDS = 8  # fewer rounds have no interval of this confidence
_MORE, _OWN = 0.1, 1.25  # a disturbed round waits longer than 1.25 times the usual share, plus 0.1
_LOW, _LEAST = 8, 3  # one in 8 rounds may wait less than the usual share, but fewer than 3 in all

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
