"""Compile other plans of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from delegate.edge.program import EdgeProgram
from delegate.kernels.selection import Kernels
from delegate.partitioner.partitioner import Partitioner
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.placement.plans import Lowered
from delegate.program.model import Program


class Compiler(Protocol):
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
        self, method: str, partitioners: Sequence[Partitioner], plan: SavedPlan | None = None, *, keep_all: bool = False
    ) -> Compiler:
        """Return a compiler of one method with other partitioners. Both compile each partition once.

        Branches run in parallel as in the plan, if there is one. `keep_all` keeps small partitions too.
        """

    def compile(self) -> tuple[Program, Any]:
        """Return the program; raises DelegateError."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """A compiler for plans of one method; a `plans.Lowering`."""

    compiler: Compiler
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
        return self._compile(plan.partitioners(self.compiler.partitioners), plan, keep_all)

    def _compile(
        self, partitioners: Sequence[Partitioner], plan: SavedPlan | None = None, keep_all: bool = False
    ) -> Lowered:
        other = self.compiler.fork_for_method(self.method, partitioners, plan, keep_all=keep_all)
        program, _ = other.compile()
        self.compiler.methods[self.method].edge = other.methods[self.method].edge
        return Lowered(SavedPlan.of(other.plans), program)
