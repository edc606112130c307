"""Data types and protocols that the search, its callers and the measurements share, and the compiler of its plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from delegate.edge.program import EdgeProgram
from delegate.kernels.selection import Kernels
from delegate.measured import Placement
from delegate.partitioner.partitioner import Partitioner
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
class Lowered:
    """A compiled plan of a method.

    Args:
        plan: the plan, as the planner returned it.
        program: the compiled method.
    """

    plan: SavedPlan
    program: Program


class PlanLowering(Protocol):
    """A compiler for plans of one method. It compiles each partition once."""

    def edge(self) -> EdgeProgram:
        """Return the method that is planned."""

    def compile_preferring(self, candidate: str) -> Lowered:
        """Compile the plan by preference with one candidate first; raises DelegateError."""

    def compile_plan(self, plan: SavedPlan, *, keep_all: bool = False) -> Lowered:
        """Compile a plan. `keep_all` keeps partitions that are not worth their call. Raises DelegateError."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice for the whole method or for one segment.

    Args:
        name: for the report.
        backend: the preferred backend.
        lowering: compiles it. Only candidates with the same lowering can be combined.
        options: of `delegate.load`, by name of a backend.
    """

    name: str
    backend: str
    lowering: PlanLowering
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
        mixes: True if plans may combine candidates by segment; else only single-backend plans are compared.
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
        candidate: the candidate whose lowering compiled it; the first one of a combined plan.
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
    """A plan of a method.

    Args:
        name: for the report.
        lowered: the compiled plan.
        candidate: its candidate; the first one of a combined plan.
        choice: the candidate of each segment of a combined plan.
        options: of `delegate.load`, by name of a backend.
    """

    name: str
    lowered: Lowered
    candidate: Candidate
    choice: tuple[str, ...] = ()
    options: Options = field(default_factory=dict)


def make_trial(
    name: str, lowered: Lowered, options: Options, task: Task, objective: str = "latency", *, is_watched: bool = False
) -> Trial:
    """Return the trial of a plan, with the options of the backends that it uses."""
    own = partition_options(options, lowered.program)
    callers = task.callers if objective == "throughput" else 1
    limit = limit_of(lowered.program, task.limits)
    return Trial(name, lowered.program, task.method, objective, own, is_watched, callers, limit)


def limit_of(program: Program, limits: Mapping[str, float]) -> float:
    """Return the most seconds for an answer of a program: the least of its backends, and those for its weights."""
    least = min((limits.get(spec.backend, math.inf) for spec in program.delegates), default=math.inf)
    return least + seconds_for(sum(map(len, program.segments)))


def partition_options(options: Options, program: Program) -> dict[str, Mapping[str, Any]]:
    """Return the options of the backends that a program has partitions of."""
    used = {spec.backend for spec in program.delegates}
    return {name: load_options for name, load_options in options.items() if name in used}


def merge_options(plans: Iterable[MethodPlan]) -> dict[str, Mapping[str, Any]]:
    """Merge the options of several plans; the first one wins."""
    options: dict[str, Mapping[str, Any]] = {}
    for plan in plans:
        for backend, load_options in plan.options.items():
            options.setdefault(backend, load_options)
    return options


def saved_plans(plans: Mapping[str, MethodPlan]) -> dict[str, SavedPlan]:
    """Return the plans in saved form."""
    return {name: p.lowered.plan for name, p in plans.items()}


class MethodCompiler(Protocol):
    """A compiler from edge programs to programs; see `delegate.compile`."""

    @property
    def partitioners(self) -> Sequence[Partitioner]:
        """The partitioners in order of preference."""

    kernels: Kernels

    @property
    def methods(self) -> Mapping[str, Any]:
        """The methods by name, each with its program as `edge`."""

    @property
    def plans(self) -> list[Plan]:
        """The plans of all methods that have one."""

    def fork_for_method(
        self, method: str, partitioners: Sequence[Partitioner], *, keep_all: bool = False
    ) -> MethodCompiler:
        """Return a compiler of one method with other partitioners. Both compile each partition once.

        `keep_all` keeps small partitions too.
        """

    def fork_with(self, edges: Mapping[str, EdgeProgram]) -> MethodCompiler:
        """Return a compiler of the same methods, of which some have other programs."""

    def apply(self, plan: SavedPlan, refusal: Verdict) -> None:
        """Assign nodes as in a plan, by the next `compile`."""

    def compile(self) -> tuple[Program, Any]:
        """Return the program; raises DelegateError."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """A compiler for plans of one method; a `PlanLowering`."""

    compiler: MethodCompiler
    method: str

    def edge(self) -> EdgeProgram:
        """Return the method that is planned."""
        edge: EdgeProgram = self.compiler.methods[self.method].edge
        return edge

    def compile_preferring(self, candidate: str) -> Lowered:
        """Compile the plan by preference with one candidate first; raises DelegateError."""
        return self._compile(sorted(self.compiler.partitioners, key=lambda p: p.backend != candidate))

    def compile_plan(self, plan: SavedPlan, *, keep_all: bool = False) -> Lowered:
        """Compile a plan. Nodes that the plan cannot place run on kernels. Raises DelegateError."""
        return self._compile(plan.partitioners(self.compiler.partitioners), keep_all=keep_all)

    def _compile(self, partitioners: Sequence[Partitioner], *, keep_all: bool = False) -> Lowered:
        other = self.compiler.fork_for_method(self.method, partitioners, keep_all=keep_all)
        program, _ = other.compile()
        self.compiler.methods[self.method].edge = other.methods[self.method].edge
        return Lowered(SavedPlan.of(other.plans), program)
