"""What paired rounds on a noisy machine say of a difference, without assuming how the noise is distributed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from delegate.measured import Interval

CONFIDENCE = 0.99  # of an interval; it is looked at after every round, which takes some of that
MIN_ROUNDS = 8  # rounds: of fewer, no interval of the median is that sure


def ratio(first: Sequence[float], second: Sequence[float]) -> Interval:
    """The cost of the first over that of the second, in rounds that are pairs; what one has more of is left out.

    The interval is of the median, from order statistics: the number of rounds below it is binomial, whatever the noise.
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
    """How many of so many numbers in order may be left out at each end; None where all of them are too few."""
    below, rank_found = 0.0, None
    for rank in range(count // 2):
        below += math.comb(count, rank) / 2**count
        if 2 * below > 1 - CONFIDENCE:
            break
        rank_found = rank
    return rank_found
