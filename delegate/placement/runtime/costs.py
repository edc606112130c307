"""The measured costs of programs as data. Without torch. All of it is stable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median


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

    rounds: list[float] = field(default_factory=list)
    steps: list[Mapping[str, float]] = field(default_factory=list)
    failure: str = ""
    busy: int = 0
    is_quiet: bool = True

    @property
    def cost(self) -> float | None:
        """The median of the rounds, or None without rounds."""
        return median(self.rounds) if self.rounds else None
