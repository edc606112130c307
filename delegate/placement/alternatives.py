"""Other plans of a method that is being compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from delegate.edge.program import EdgeProgram
from delegate.partitioner.partitioner import Partitioner
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.placement.plans import Lowered
from delegate.program.model import Program
from delegate.runtime.kernels import Kernels


class OnItsWay(Protocol):
    """A method on its way to a program."""

    edge: EdgeProgram


class Compiler(Protocol):
    """What brings methods from edge programs to a program; `delegate.compile` has it."""

    @property
    def partitioners(self) -> Sequence[Partitioner]:
        """In order of preference."""

    kernels: Kernels

    @property
    def methods(self) -> Mapping[str, Any]:
        """By name, each an `OnItsWay`."""

    @property
    def plans(self) -> list[Plan]:
        """Of every method that has one."""

    def another(
        self, method: str, partitioners: Sequence[Partitioner], plan: SavedPlan | None = None, *, keep_all: bool = False
    ) -> Compiler:
        """One for a method alone, as it is here, with other partitioners; each partition is compiled once for both.

        What runs at the same time is as in the plan, if there is one. With `keep_all` partitions stand however small
        they are.
        """

    def emitted(self) -> tuple[Program, Any]:
        """The program; raises DelegateError."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Compiles plans of one method; a `plans.Lowering`."""

    compiler: Compiler
    method: str

    def edge(self) -> EdgeProgram:
        """The method that is planned."""
        found: EdgeProgram = self.compiler.methods[self.method].edge
        return found

    def alone(self, candidate: str) -> Lowered:
        """The plan by preference with a candidate before all others; raises DelegateError."""
        return self._lowered(sorted(self.compiler.partitioners, key=lambda p: p.backend != candidate))

    def planned(self, plan: SavedPlan, *, keep_all: bool = False) -> Lowered:
        """A plan; what cannot be kept of it runs on kernels. Raises DelegateError."""
        return self._lowered(plan.partitioners(self.compiler.partitioners), plan, keep_all)

    def _lowered(
        self, partitioners: Sequence[Partitioner], plan: SavedPlan | None = None, keep_all: bool = False
    ) -> Lowered:
        other = self.compiler.another(self.method, partitioners, plan, keep_all=keep_all)
        program, _ = other.emitted()
        self.compiler.methods[self.method].edge = other.methods[self.method].edge
        return Lowered(SavedPlan.of(other.plans), program)
