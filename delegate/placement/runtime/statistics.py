"""Confidence intervals of paired rounds on a noisy machine, for any distribution of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from delegate.measured import Interval

CONFIDENCE = 0.99  # of an interval; repeated tests after every round reduce it
MIN_ROUNDS = 8  # fewer rounds have no interval of this confidence


def ratio(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the ratio of two costs, from paired rounds. Extra rounds of one of them are ignored.

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
