"""What measured placement measures: candidates, the plans that are compiled for them, and the one that is chosen."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from delegate.config import PlacementSection
from delegate.errors import ConfigError, did_you_mean
from delegate.lowering.compiler import Compiler
from delegate.lowering.quantized import QuantizedPrograms
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.placement.reference_comparator import ReferenceComparator
from delegate.placement.runtime.trials import ProgramRunner, Trial
from delegate.placement.strategy import Options, PathLike, Progress
from delegate.processes.limits import seconds_for
from delegate.program.model import Program
from delegate.report.measured import Placement


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice for a whole method.

    Args:
        name: The plan's name in the report.
        way: the way that its plan takes, e.g. the name of a backend; see `delegate.partitioner.search`.
        compiler: has all methods of its program, and the estimates that mixed plans are searched by.
        quantized: the methods that are quantized for it; None for the original program.
        options: Backend name -> its options of `delegate.load`.
    """

    name: str
    way: str
    compiler: Compiler
    quantized: QuantizedPrograms | None = None
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """A method to place.

    Args:
        method: its name.
        candidates: the preferred first.
        objective: a key of `delegate.report.measured.UNITS`.
        budget: seconds.
        mixes: True if plans that mix backends are searched for; else only the candidates are compared.
        limits: backend -> most seconds for an answer of a program with partitions of it. The others have no limit.
    """

    method: str
    candidates: Sequence[Candidate]
    objective: str
    budget: float
    mixes: bool = True
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The chosen plan of a method.

    Args:
        candidate: the candidate that compiled it, or whose compiler compiled a mixed plan.
        plan: the backend of each node.
        options: Backend name -> its options of `delegate.load`.
        placement: What the report says about the placement.
    """

    candidate: Candidate
    plan: SavedPlan
    options: Options
    placement: Placement


class Comparator(Protocol):
    """A comparison of results with the reference.

    Attributes:
        bound: the least SQNR in dB; None: the bound for the program's own precision.
        is_random: True if the method draws random numbers, so that results cannot be compared.
    """

    bound: float | None
    is_random: bool

    def sqnr_db(self, name: str, runner: ProgramRunner, program: Program) -> float | None:
        """Return the SQNR of a program's results in dB; None if it is unknown. Raises TrialFailed."""


@dataclass(frozen=True, slots=True)
class MethodPlan:
    """A compiled plan of a method.

    Args:
        name: The plan's name in the report.
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


def make_trial(name: str, program: Program, options: Options, task: Task, *, is_watched: bool = False) -> Trial:
    """Return the trial of a program by the objective of a task; its parts are timed too if it is watched."""
    least = min((task.limits.get(spec.backend, math.inf) for spec in program.delegates), default=math.inf)
    limit = least + seconds_for(sum(map(len, program.segments)))
    return Trial(name, program, task.method, task.objective, options, is_watched, limit)


def partition_options(options: Options, program: Program) -> dict[str, Mapping[str, Any]]:
    """Return the options of the backends that a program has partitions of."""
    used = {spec.backend for spec in program.delegates}
    return {name: load_options for name, load_options in options.items() if name in used}


def float_candidates(settings: PlacementSection, backends: Sequence[str]) -> dict[str, str]:
    """Return the candidates without quantization: name -> backend.

    Raises:
        ConfigError: a candidate is not among the backends.
    """
    if settings.candidates is None:
        return {name: name for name in backends}
    for candidate in settings.candidates:
        if candidate.name not in backends:
            what = f"candidate {candidate.name!r} is not among the backends: {', '.join(backends) or 'there are none'}"
            raise ConfigError(what, where="placement.candidates", remedy=did_you_mean(candidate.name, backends))
    return {c.name: c.name for c in settings.candidates if c.quantization is None}


class RemotePlacement(ABC):
    """Measurements of another machine instead of local ones: its costs, or a bundle of programs to measure there."""

    @abstractmethod
    def place(self, task: Task, comparator: ReferenceComparator, progress: Progress) -> ChosenPlan:
        """Choose the plan of a method.

        Raises:
            PartitionError: the costs are of other programs, of other inputs, or by another objective.
            DelegateError: no candidate can be compiled.
        """

    @abstractmethod
    def finish(self) -> None:
        """Write the bundle, if there is one, after all methods are placed.

        Raises:
            PartitionError: according to the costs there is nothing left to measure.
            ProgramError: it cannot be written.
        """


OpenRemotePlacement = Callable[[PathLike | None, Sequence[PathLike]], RemotePlacement]
"""The AOT part of "bundle": its arguments are the path of the bundle to write, if any, and the paths of costs.

It raises PartitionError for costs that cannot be read, and ProgramError for a bundle that cannot be written.
"""
