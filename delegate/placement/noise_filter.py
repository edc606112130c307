"""Calm rounds: those in which no other work had the cores.

Other work hits one library harder than another, so that a pair of rounds does not cancel it. It is told by how long the
threads of a program could have run and had no core, beside how long they wait at the least: a library with more threads
than there are cores waits for its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delegate.placement.statistics import MIN_ROUNDS
from delegate.placement.trials import RoundResult

_MORE, _OWN = 0.1, 1.25  # waits beyond this share of the time, and so many times the usual, are others' work
_LOW, _LEAST = 8, 3  # of so many turns one may have waited less than is usual; in all fewer than so many

Round = Mapping[str, RoundResult]


class NoiseFilter:
    """Knows how long programs wait for a core, over all measurements of one method: one calm moment is enough."""

    def __init__(self) -> None:
        self._waited: dict[str, list[float]] = {}

    def add(self, turns: Round) -> None:
        """Learn from a round."""
        for name, result in turns.items():
            self._waited.setdefault(name, []).append(result.waited)

    def select(self, rounds: Sequence[Round]) -> tuple[list[Round], bool]:
        """The rounds that count, and whether they are calm.

        Where fewer are than an interval needs, it is the least busy ones.
        """
        usual = {n: sorted(waited)[min(len(waited) // _LOW, _LEAST - 1)] for n, waited in self._waited.items()}
        beyond = [max((t.waited - _OWN * usual[n] - _MORE for n, t in turns.items()), default=0.0) for turns in rounds]
        quiet = [turns for turns, busy in zip(rounds, beyond, strict=True) if busy <= 0]
        if len(quiet) >= min(MIN_ROUNDS, len(rounds)):
            return quiet, True
        most = sorted(beyond)[min(MIN_ROUNDS, len(rounds)) - 1]
        return [turns for turns, busy in zip(rounds, beyond, strict=True) if busy <= most], False
