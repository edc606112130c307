"""The interface of watches: observers of a context's instructions, which wrap steps when a method is bound.

A method that is bound without a watch has no overhead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from delegate.errors import DelegateError
from delegate.program.model import Instruction, MethodDefinition, Program
from delegate.runtime.backend import Array
from delegate.runtime.steps import Step

T = TypeVar("T")
Shapes = Sequence[tuple[int, ...]]


class Executor(Protocol):
    """An execution of a method. Not thread-safe: the lock of the context is held."""

    def run(self, inputs: Sequence[Array | None]) -> list[Any]:
        """Run on checked inputs, None for a literal; return the flat leaves of the result."""


class Watch(Protocol):
    """An observer of a context's instructions."""

    def executor(self, method: MethodDefinition, executor: Executor) -> Executor:
        """Return the executor of a method, wrapped."""

    def watched(
        self, program: Program, method: MethodDefinition, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction, wrapped; `shapes` are the shapes of all values of the method."""

    def run(
        self, program: Program, method: MethodDefinition, call: Instruction, function: Callable[..., T], *args: Any
    ) -> T:
        """Return the result of an instruction's function that is not a step."""


class StepWatch(ABC):
    """A watch that only wraps steps."""

    def executor(self, method: MethodDefinition, executor: Executor) -> Executor:
        """Return the executor of a method."""
        return executor

    @abstractmethod
    def watched(
        self, program: Program, method: MethodDefinition, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction, wrapped; `shapes` are the shapes of all values of the method."""

    def run(
        self, program: Program, method: MethodDefinition, call: Instruction, function: Callable[..., T], *args: Any
    ) -> T:
        """Run the function of an instruction that has no steps."""
        return function(*args)


class WrappedStep:
    """A step with another run, which usually runs the step and looks at its arrays.

    Args:
        step: the step.
        run: replaces its run.
    """

    __slots__ = ("run", "step")

    def __init__(self, step: Step, run: Callable[[], None]) -> None:
        self.step, self.run = step, run

    def __call__(self) -> None:
        self.run()

    def failed(self, error: BaseException) -> DelegateError:
        """Return the error that names what failed."""
        return self.step.failed(error)
