"""Data types and protocols that the search, its callers and the measurements share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from delegate.costs.estimates import Estimates
from delegate.edge.program import EdgeProgram
from delegate.kernels.selection import Kernels
from delegate.measured import Placement
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.placement.runtime.accuracy_check import AccuracyResult
from delegate.placement.runtime.trials import ProgramRunner, Trial
from delegate.probing.process import seconds_for
from delegate.program.model import Program
from delegate.verdict import Verdict

Options = Mapping[str, Mapping[str, Any]]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice for a whole method.

    Args:
        name: for the report.
        way: the way that its plan takes, e.g. the name of a backend; see `delegate.partitioner.search`.
        compiler: has the method, and the estimates that mixed plans are searched by.
        options: of `delegate.load`, by name of a backend.
    """

    name: str
    way: str
    compiler: MethodCompiler
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """A method to place.

    Args:
        method: its name.
        candidates: the preferred first.
        objective: a key of `delegate.measured.UNITS`.
        budget: seconds.
        callers: number of concurrent callers if the objective is throughput.
        mixes: True if plans that mix backends are searched for; else only the candidates are compared.
        limits: backend -> most seconds for an answer of a program with partitions of it. The others have no limit.
    """

    method: str
    candidates: Sequence[Candidate]
    objective: str
    budget: float
    callers: int = 1
    mixes: bool = True
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The chosen plan of a method.

    Args:
        candidate: the candidate that compiled it, or whose compiler compiled a mixed plan.
        plan: the backend of each node.
        options: of `delegate.load`, by name of a backend.
        placement: for the report.
    """

    candidate: Candidate
    plan: SavedPlan
    options: Options
    placement: Placement


class Comparator(Protocol):
    """A comparison of results with the reference.

    Attributes:
        is_random: True if the method draws random numbers, so that results cannot be compared.
    """

    is_random: bool

    def __call__(self, runners: Mapping[str, ProgramRunner], programs: Mapping[str, Program]) -> AccuracyResult:
        """Compare the results of programs, store their SQNR, and return the failures."""

    def sqnr_db(self, name: str) -> float | None:
        """Return the SQNR of a program, or None if it was not compared."""


@dataclass(frozen=True, slots=True)
class MethodPlan:
    """A compiled plan of a method.

    Args:
        name: for the report.
        candidate: see `ChosenPlan`.
        plan: the plan.
        program: the compiled method.
    """

    name: str
    candidate: Candidate
    plan: Plan
    program: Program

    @property
    def options(self) -> Options:
        """The options of `delegate.load` for the backends that run partitions."""
        return partition_options(self.candidate.options, self.program)


def make_trial(plan: MethodPlan, task: Task) -> Trial:
    """Return the trial of a plan by the objective, with the options of the backends that it uses."""
    callers = task.callers if task.objective == "throughput" else 1
    limit = limit_of(plan.program, task.limits)
    return Trial(plan.name, plan.program, task.method, task.objective, plan.options, callers=callers, limit=limit)


def watched_trial(plan: MethodPlan, task: Task) -> Trial:
    """Return the trial of a plan whose parts are timed."""
    return replace(make_trial(plan, task), objective="latency", callers=1, is_watched=True)


def limit_of(program: Program, limits: Mapping[str, float]) -> float:
    """Return the most seconds for an answer of a program: the least of its backends, and those for its weights."""
    least = min((limits.get(spec.backend, math.inf) for spec in program.delegates), default=math.inf)
    return least + seconds_for(sum(map(len, program.segments)))


def partition_options(options: Options, program: Program) -> dict[str, Mapping[str, Any]]:
    """Return the options of the backends that a program has partitions of."""
    used = {spec.backend for spec in program.delegates}
    return {name: load_options for name, load_options in options.items() if name in used}


class MethodCompiler(Protocol):
    """A compiler from edge programs to programs; see `delegate.compile`."""

    kernels: Kernels

    @property
    def methods(self) -> Mapping[str, Any]:
        """The methods by name, each with its program as `edge`."""

    @property
    def plans(self) -> list[Plan]:
        """The plans of all methods that have one."""

    costs: Estimates | None

    def fork_for_way(
        self, method: str, way: str, costs: Estimates | None = None, *, keep_all: bool = False
    ) -> MethodCompiler:
        """Return a compiler of one method whose plan takes a way, by these estimates or those of this compiler.

        Both compile each partition once. `keep_all` keeps small partitions too.
        """

    def fork_with(self, edges: Mapping[str, EdgeProgram]) -> MethodCompiler:
        """Return a compiler of the same methods, of which some have other programs."""

    def apply(self, plan: SavedPlan, refusal: Verdict) -> None:
        """Assign nodes as in a plan, by the next `compile`."""

    def plan(self) -> None:
        """Plan all methods."""

    def compile(self) -> tuple[Program, Any]:
        """Return the program; raises DelegateError."""
