"""What is placed, what may be chosen, and what was: the words between the policy, its caller and its measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from delegate.edge.program import EdgeProgram
from delegate.measured import Placement
from delegate.partitioner.saved import SavedPlan
from delegate.placement.judging import Examined
from delegate.placement.trials import Seat, Trial
from delegate.program.model import Program

Options = Mapping[str, Mapping[str, Any]]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A plan of a method, compiled.

    Args:
        plan: as the planner made it.
        program: the method.
    """

    plan: SavedPlan
    program: Program


class Lowering(Protocol):
    """What compiles plans of one method, each partition once."""

    def edge(self) -> EdgeProgram:
        """The method that is planned."""

    def alone(self, candidate: str) -> Lowered:
        """The plan by preference with a candidate before all others; raises DelegateError."""

    def planned(self, plan: SavedPlan, *, keep_all: bool = False) -> Lowered:
        """A plan, with `keep_all` also the partitions that would not be worth their call; raises DelegateError."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may be chosen for the whole, or for a stretch.

    Args:
        name: for people.
        backend: its first.
        lowering: that compiles it. Candidates of one are mixed.
        options: of `delegate.load`, by name of a backend.
    """

    name: str
    backend: str
    lowering: Lowering
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be placed, and how.

    Args:
        method: its name.
        candidates: the preferred first.
        objective: a key of `delegate.measured.UNITS`.
        budget: seconds.
        callers: that call at the same time, where throughput is the objective.
        mixes: whether candidates are mixed by stretches; else whole plans of one candidate are compared.
    """

    method: str
    candidates: Sequence[Candidate]
    objective: str
    budget: float
    callers: int = 1
    mixes: bool = True


@dataclass(frozen=True, slots=True)
class Placed:
    """What was chosen.

    Args:
        candidate: whose lowering it is of; of a mixed plan the first one's.
        plan: where nodes run.
        options: of `delegate.load`, by name of a backend.
        placement: for the report.
    """

    candidate: Candidate
    plan: SavedPlan
    options: Options
    placement: Placement


class Examiner(Protocol):
    """Looks at what programs give.

    Attributes:
        is_random: whether the method draws random numbers, so that nothing can be compared.
    """

    is_random: bool

    def __call__(self, seats: Mapping[str, Seat], programs: Mapping[str, Program]) -> Examined:
        """What is wrong with the results of programs; keeps how near they are to torch's."""

    def sqnr_db(self, name: str) -> float | None:
        """How near they were, where that was looked at."""


@dataclass(frozen=True, slots=True)
class WholePlan:
    """A plan of the whole method.

    Args:
        name: for people.
        lowered: compiled.
        candidate: that it is of; of a mixed one the first's.
        choice: candidates of the stretches, where it is mixed.
        beside: candidates of the branches, where these run at the same time.
        options: of `delegate.load`, by name of a backend.
    """

    name: str
    lowered: Lowered
    candidate: Candidate
    choice: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    options: Options = field(default_factory=dict)


def trial_of(
    name: str, lowered: Lowered, options: Options, task: Task, objective: str = "latency", *, is_watched: bool = False
) -> Trial:
    """A plan as a program to measure, with those of the options that are of its backends."""
    own = of_partitions(options, lowered.program)
    callers = task.callers if objective == "throughput" else 1
    return Trial(name, lowered.program, task.method, objective, own, is_watched, callers)


def of_partitions(options: Options, program: Program) -> dict[str, Mapping[str, Any]]:
    """The options of backends that a program has partitions of."""
    used = {spec.backend for spec in program.delegates}
    return {name: given for name, given in options.items() if name in used}


def merged(plans: Iterable[WholePlan]) -> dict[str, Mapping[str, Any]]:
    """The options of several; the first one's count where they differ."""
    found: dict[str, Mapping[str, Any]] = {}
    for plan in plans:
        for backend, given in plan.options.items():
            found.setdefault(backend, given)
    return found


def own_plans(plans: Mapping[str, WholePlan]) -> dict[str, SavedPlan]:
    """The plans as data."""
    return {name: p.lowered.plan for name, p in plans.items()}
