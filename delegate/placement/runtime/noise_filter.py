"""Select low-noise rounds, in which no other process used the cores.

Other processes slow down some libraries more than others, so the ratio of a pair of rounds does not cancel the effect.
The measure is how long the threads of a program were ready without a core, relative to their usual waiting time. The
usual time is not 0, since a library with more threads than cores waits for its own threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delegate.placement.runtime.statistics import MIN_ROUNDS
from delegate.placement.runtime.trials import RoundResult

_MORE, _OWN = 0.1, 1.25  # a disturbed round waits longer than 1.25 times the usual share, plus 0.1
_LOW, _LEAST = 8, 3  # one in 8 rounds may wait less than the usual share, but fewer than 3 in all

Round = Mapping[str, RoundResult]


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
