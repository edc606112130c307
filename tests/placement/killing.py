"""A program whose seat is killed while it is measured beside another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from delegate.placement.costs import Record
from delegate.placement.racing import measured, rounds
from delegate.placement.trials import Seat, Trial
from delegate.program.model import Program


def killed_midway(bench: Any, program: Program, kill: Callable[[Any], None]) -> Record:
    """What is known of the one whose seat is killed after two rounds; the other's four are checked here."""
    seats: list[Seat] = []

    class Watching:
        def seat(self, trial: Trial) -> Seat:
            seats.append(bench.seat(trial))
            return seats[-1]

    def go_on(records: Mapping[str, Record]) -> Any:
        if len(records["a"].rounds) == 2:
            kill(seats[0])
        return rounds(4)(records)

    records = measured([Trial(n, program, "forward") for n in "ab"], Watching(), go_on, lambda: True)
    assert len(records["a"].rounds) == 2
    assert (len(records["b"].rounds), records["b"].failure) == (4, "")
    return records["a"]
