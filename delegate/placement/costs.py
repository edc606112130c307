"""What was measured, as data: the words that the rest of this room, lockfiles and bundles share. Without torch.

`Stretch`, `Record` and `Costs` are stable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from delegate.plain_data import amount, items, text


@dataclass(frozen=True, slots=True)
class Stretch:
    """Nodes in a row of a method's graph, between two narrow places.

    Args:
        graph: the method.
        name: of the modules that it goes through, e.g. "layer1.0 to layer2.1".
        nodes: identities of the nodes that compute, in order; those in graphs of its control flow are not among them.
        names: names of all its nodes in the planned graph, which values of the program and timings have too.
        graphs: names of the graphs of control flow that its nodes call.
        bytes_in: that come in from stretches before it.
        after: numbers of the stretches whose results it uses.
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
    """What running one program showed, a round a number. Round i of two records of one measurement is a pair.

    Args:
        rounds: seconds a call, or bytes: the median of the calls of each round.
        steps: of each round that was watched, what a call of a step took: the first value that it makes, or the name of
            its partition -> seconds.
        failure: why it could not be run to its end, e.g. "was killed by SIGSEGV"; what was measured before stays.
        busy: how many rounds do not count, for other work had the cores; known where it was measured.
        is_calm: whether no other work had the cores in those that count, for all that is known.
    """

    rounds: list[float] = field(default_factory=list)
    steps: list[Mapping[str, float]] = field(default_factory=list)
    failure: str = ""
    busy: int = 0
    is_calm: bool = True

    @property
    def cost(self) -> float | None:
        """The median of its rounds; None where there are none."""
        return median(self.rounds) if self.rounds else None

    def to_data(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"rounds": self.rounds, "steps": [dict(s) for s in self.steps], "failure": self.failure}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Record:
        """What `to_data` gave; raises KeyError, TypeError or ValueError for other data."""
        steps = [{name: amount(step, name) for name in step} for step in items(data, "steps")]
        rounds = [amount({"rounds": each}, "rounds") for each in data["rounds"]]
        return cls(rounds, list(steps), text(data, "failure"))


@dataclass(frozen=True, slots=True)
class Costs:
    """What choosing by stretches needs to know; the key of a pair is (the candidate before, the one behind).

    Args:
        stretches: candidate -> seconds of every stretch, as a partition of its own, in the rounds that were run.
        joined: candidate -> seconds saved at a border where both sides are its own and one partition, per border.
        crossing: pair of candidates -> seconds that passing from one to the other takes beyond both, per border.
    """

    stretches: Mapping[str, Sequence[Sequence[float]]]
    joined: Mapping[str, Sequence[float]]
    crossing: Mapping[tuple[str, str], float]

    def rounds(self, candidate: str, members: Sequence[int]) -> list[float]:
        """Seconds of stretches in a row as one partition, in the rounds that were run."""
        saved = sum(self.joined[candidate][border] for border in members[:-1])
        pieces = (self.stretches[candidate][number] for number in members)
        return [max(sum(each) - saved, 0.0) for each in zip(*pieces, strict=False)]

    def of(self, candidate: str, stretch: int) -> float:
        """The median cost of a stretch on a candidate."""
        return median(self.stretches[candidate][stretch])
