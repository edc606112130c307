"""Watches: observers of a context's instructions, which wrap steps when a method is bound.

`EventWatch` sends the events of listeners. A method that is bound without a watch has no overhead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from threading import get_ident
from typing import Any, Protocol, TypeVar

import numpy as np

from delegate.errors import DelegateError
from delegate.events import Subscription
from delegate.events.kinds import BoundInstruction, InstructionRun, Kind, MethodRun
from delegate.memory.storage import owner
from delegate.program.instructions import reads, source_of
from delegate.program.model import DelegateCall, Instruction, KernelCall, MethodDefinition, Program, StorageKind
from delegate.program.raw import nbytes
from delegate.report import Report
from delegate.runtime.backend import Array
from delegate.runtime.steps import CompactStep, KernelStep, Step

T = TypeVar("T")
Shapes = Sequence[tuple[int, ...]]
_new = tuple.__new__  # takes half the time of the constructor of a named tuple


class Executor(Protocol):
    """An execution of a method. Not thread-safe: the lock of the context is held."""

    def run(self, inputs: Sequence[Array | None]) -> list[Any]:
        """Run on checked inputs, None for a literal; return the flat leaves of the result."""


class Watch(ABC):
    """An observer of a context's instructions; by default it wraps steps alone."""

    __slots__ = ()

    def executor(self, method: MethodDefinition, executor: Executor) -> Executor:
        """Return the executor of a method, wrapped if runs are observed."""
        return executor

    @abstractmethod
    def wrap(
        self, program: Program, method: MethodDefinition, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction, wrapped; `shapes` are the shapes of all values of the method."""

    def run(
        self, program: Program, method: MethodDefinition, call: Instruction, function: Callable[..., T], *args: Any
    ) -> T:
        """Return the result of an instruction's function that is not a step."""
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

    def translate(self, error: BaseException) -> DelegateError:
        """Return the error that names what failed."""
        return self.step.translate(error)


@dataclass(frozen=True, slots=True)
class EventWatch(Watch):
    """Sends the events of a context to listeners.

    Args:
        subscriptions: The listeners' subscriptions.
        clock: nanoseconds.
        context: the number of the context.
        modules: paths of modules.
        seen: the instructions without steps that have run.
    """

    subscriptions: tuple[Subscription, ...]
    clock: Callable[[], int]
    context: int
    modules: ModulePaths
    seen: set[str]

    def executor(self, method: MethodDefinition, executor: Executor) -> Executor:
        """Return an executor that sends an event for each run."""
        return _WatchedExecutor(self, method.name, executor)

    def wrap(
        self, program: Program, method: MethodDefinition, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction, which send an event for each run."""

        def size_of(index: int) -> int:
            return nbytes(shapes[index], method.values[index].dtype.numpy)

        watched: list[Step] = []
        for step in steps:
            library = step.library if isinstance(step, KernelStep) else ""
            is_copy = isinstance(step, CompactStep)
            bound = self._bound(program, method, call, size_of, library=library, is_copy=is_copy)
            watched.append(_WatchedStep(self, bound, step))
        return watched

    def run(
        self, program: Program, method: MethodDefinition, call: Instruction, function: Callable[..., T], *args: Any
    ) -> T:
        """Return the result of an instruction's function, and send an event."""
        start = self.clock()
        result = function(*args)
        duration = self.clock() - start
        results = result if isinstance(result, tuple) else (result,)
        arrays = [value for value in (*args, *results) if isinstance(value, np.ndarray)]
        sizes = {i: array.nbytes for i, array in zip((*reads(call), *call.outputs), arrays, strict=False)}
        instruction = self._bound(program, method, call, lambda index: sizes.get(index, 0))
        self.send(InstructionRun(instruction, start, duration, *self.place, instruction.id not in self.seen))
        self.seen.add(instruction.id)
        return result

    @property
    def place(self) -> tuple[int, int]:
        """The current thread, and the context."""
        return get_ident(), self.context

    def send(self, event: InstructionRun | MethodRun) -> None:
        """Send an event to all listeners."""
        for subscription in self.subscriptions:
            subscription(event)

    def _bound(
        self,
        program: Program,
        method: MethodDefinition,
        call: Instruction,
        size_of: Callable[[int], int],
        *,
        library: str = "",
        is_copy: bool = False,
    ) -> BoundInstruction:
        what, source, backend = _describe(program, method, call)
        if is_copy:
            what = f"copy for {what}"
        name = method.values[call.outputs[0]].name if call.outputs else ""
        storages = [value.storage for value in method.values]
        read, written = tuple(dict.fromkeys(reads(call))), tuple(call.outputs)
        return BoundInstruction(
            id=f"{method.name}/{name}/{call.outputs}/{what}",
            method=method.name,
            name=name,
            what=what,
            kind=_kind(method, call),
            backend=backend,
            source=source,
            module=self.modules.path(program, method, call, name),
            reads=tuple(owner(i, storages) for i in read),
            writes=tuple(owner(i, storages) for i in written),
            input_bytes=sum(map(size_of, read)),
            output_bytes=sum(map(size_of, written)),
            library=library,
        )


class _WatchedStep:
    """A step that sends an event after each run."""

    __slots__ = ("clock", "context", "instruction", "is_warm_up", "step", "subscriptions", "translate")

    def __init__(self, watch: EventWatch, instruction: BoundInstruction, step: Step) -> None:
        self.subscriptions, self.clock, self.context = watch.subscriptions, watch.clock, watch.context
        self.instruction, self.step, self.translate, self.is_warm_up = instruction, step, step.translate, True

    def __call__(self) -> None:
        start = self.clock()
        self.step()
        duration = self.clock() - start
        event = _new(InstructionRun, (self.instruction, start, duration, get_ident(), self.context, self.is_warm_up))
        self.is_warm_up = False
        for subscription in self.subscriptions:
            subscription(event)


class _WatchedExecutor:
    """An executor that sends an event after each run."""

    def __init__(self, watch: EventWatch, method: str, executor: Executor) -> None:
        self._watch, self._method, self._executor = watch, method, executor

    def run(self, inputs: Sequence[Array | None]) -> list[Any]:
        start = self._watch.clock()
        results = self._executor.run(inputs)
        duration = self._watch.clock() - start
        self._watch.send(MethodRun(self._method, start, duration, *self._watch.place))
        return results


class ModulePaths:
    """The paths of the user's modules, from the report of a program.

    Args:
        report: as `Program.report`; empty if there is none.
    """

    def __init__(self, report: str) -> None:
        self._report = report

    def path(self, program: Program, method: MethodDefinition, call: Instruction, name: str) -> str:
        """Return the path of an instruction's module; of a partition the path that its nodes share; "" if unknown."""
        if isinstance(call, DelegateCall):
            return self._of_partitions.get(program.delegates[call.delegate].name, "")
        return self._of_nodes.get((method.name, name), "")

    @cached_property
    def _nodes(self) -> Sequence[tuple[str, str, str, str]]:
        if not self._report:
            return ()
        report = Report.from_json(self._report)
        return [(n.method, n.name.rpartition(".")[2], n.partition, n.module) for n in report.nodes if n.module]

    @cached_property
    def _of_nodes(self) -> Mapping[tuple[str, str], str]:
        return {(method, name): module for method, name, _, module in self._nodes}

    @cached_property
    def _of_partitions(self) -> Mapping[str, str]:
        shared: dict[str, list[str]] = {}
        for _, _, partition, module in self._nodes:
            parts = module.split(".")
            both = zip(shared.get(partition, parts), parts, strict=False)
            shared[partition] = [part for part, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
        return {partition: ".".join(parts) for partition, parts in shared.items()}


def _kind(method: MethodDefinition, call: Instruction) -> Kind:
    """Return the kind of an instruction, which the copies that it needs share."""
    if isinstance(call, KernelCall):
        values = (*call.outputs, *reads(call))
        stored = (method.values[i].storage for i in values)
        is_across = any(storage.kind is StorageKind.ARENA and storage.index > 0 for storage in stored)
        return "copy" if is_across else "kernel"
    return "partition" if isinstance(call, DelegateCall) else "control flow"


def _describe(program: Program, method: MethodDefinition, call: Instruction) -> tuple[str, str, str]:
    """Return a description of an instruction, the user's line, and the backend."""
    if isinstance(call, KernelCall):
        return program.operators[call.operator], source_of(method, call), ""
    if isinstance(call, DelegateCall):
        spec = program.delegates[call.delegate]
        return f"partition {spec.name}", "", spec.backend
    return call.kind.name.lower(), "", ""
