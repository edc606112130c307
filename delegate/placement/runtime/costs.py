"""Measured costs as data: of segments and of programs. Without torch. All of it is stable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive nodes of a method between two narrow places.

    Args:
        graph: the method.
        name: the modules that it goes through, e.g. "layer1.0 to layer2.1".
        nodes: identities of the compute nodes, in order, without those in control-flow graphs.
        names: names of all its nodes in the planned graph. Values of the program and timings have the same names.
        graphs: names of the control-flow graphs that its nodes call.
        bytes_in: bytes that come in from earlier segments.
        after: numbers of the segments whose results it uses.
    """

    graph: str
    name: str
    nodes: tuple[str, ...]
    names: tuple[str, ...]
    graphs: tuple[str, ...] = ()
    bytes_in: int = 0
    after: tuple[int, ...] = ()


@dataclass(slots=True)
class Record:
    """The rounds of one program. Round i of two records of one measurement is a pair.

    Args:
        rounds: seconds per call, or bytes: the median of the calls of each round.
        steps: for each watched round, seconds per step. A step has the name of its first value or of its partition.
        failure: why the program stopped, e.g. "was killed by SIGSEGV". Earlier rounds stay.
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


@dataclass(frozen=True, slots=True)
class SegmentCosts:
    """Costs for a choice by segments. The key of a pair is (candidate before, candidate after).

    Args:
        segments: candidate -> seconds of every segment as a partition of its own, by round.
        savings: candidate -> seconds saved per border if both sides are one partition of that candidate.
        crossing: pair of candidates -> extra seconds per border for the change from one to the other.
    """

    segments: Mapping[str, Sequence[Sequence[float]]]
    savings: Mapping[str, Sequence[float]]
    crossing: Mapping[tuple[str, str], float]

    def rounds(self, candidate: str, members: Sequence[int]) -> list[float]:
        """Return the seconds of consecutive segments as one partition, by round."""
        saved = sum(self.savings[candidate][border] for border in members[:-1])
        rounds = (self.segments[candidate][number] for number in members)
        return [max(sum(each) - saved, 0.0) for each in zip(*rounds, strict=False)]

    def of(self, candidate: str, segment: int) -> float:
        """Return the median cost of a segment on a candidate."""
        return median(self.segments[candidate][segment])
