"""What listeners of a context observe: its instructions, and delegates that report their library's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import takewhile
from threading import get_ident
from typing import Any, NamedTuple, TypeVar

import numpy as np

from delegate.devtools.events import BoundInstruction, InstructionRun, Kind, MethodRun, OperatorRun
from delegate.devtools.listeners import Subscription
from delegate.errors import BackendFailed
from delegate.plugins import AUTHOR
from delegate.program.instructions import reads
from delegate.program.model import (
    DelegateCall,
    DelegateSpec,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    StorageKind,
)
from delegate.program.raw import nbytes
from delegate.report import Report
from delegate.runtime.backend import Array, Delegate, ReportOperator
from delegate.runtime.call_lock import CallLock
from delegate.runtime.delegates import close_delegates, lock_of
from delegate.runtime.steps import CompactStep, KernelStep, Step, failed
from delegate.runtime.watch import Executor, Shapes

T = TypeVar("T")
_new = tuple.__new__  # takes half the time of the constructor of a named tuple


class EventWatch(NamedTuple):
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

    def watched(
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
        what, source, backend = _described(program, method, call)
        if is_copy:
            what = f"copy for {what}"
        name = method.values[call.outputs[0]].name if call.outputs else ""
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
            reads=tuple(_owner(method, i) for i in read),
            writes=tuple(_owner(method, i) for i in written),
            input_bytes=sum(map(size_of, read)),
            output_bytes=sum(map(size_of, written)),
            library=library,
        )


def _owner(method: MethodDefinition, index: int) -> int:
    """Return the value that owns the memory of a value."""
    while (storage := method.values[index].storage).kind is StorageKind.ALIAS:
        index = storage.index
    return index


class _WatchedStep:
    """A step that sends an event after each run."""

    __slots__ = ("clock", "context", "failed", "instruction", "is_warm_up", "step", "subscriptions")

    def __init__(self, watch: EventWatch, instruction: BoundInstruction, step: Step) -> None:
        self.subscriptions, self.clock, self.context = watch.subscriptions, watch.clock, watch.context
        self.instruction, self.step, self.failed, self.is_warm_up = instruction, step, step.failed, True

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


def _described(program: Program, method: MethodDefinition, call: Instruction) -> tuple[str, str, str]:
    """Return a description of an instruction, the user's line, and the backend."""
    if isinstance(call, KernelCall):
        return program.operators[call.operator], method.sources[call.source] if call.source >= 0 else "", ""
    if isinstance(call, DelegateCall):
        spec = program.delegates[call.delegate]
        return f"partition {spec.name}", "", spec.backend
    return call.kind.name.lower(), "", ""


class ProfiledDelegates:
    """The delegates of a program whose library reports its operators, opened again.

    Args:
        specs: The specs of all delegates of the program.
        delegates: The program's delegates.
        subscriptions: Subscriptions of the listeners that receive the operators.

    Attributes:
        delegates: number of a delegate -> the delegate and lock in its place.

    Raises:
        BackendFailed: a delegate could not be opened again.
    """

    def __init__(
        self, specs: Sequence[DelegateSpec], delegates: Sequence[Delegate], subscriptions: Sequence[Subscription]
    ) -> None:
        self._specs: list[DelegateSpec] = []
        self._opened: list[Delegate] = []
        self.delegates: dict[int, tuple[Delegate, CallLock | None]] = {}
        try:
            for number, (spec, delegate) in enumerate(zip(specs, delegates, strict=True)):
                own = _open(spec, delegate, subscriptions)
                if own is not None:
                    self._specs.append(spec)
                    self._opened.append(own)
                    self.delegates[number] = own, lock_of(spec, own)
        except BaseException:
            with suppress(BackendFailed):  # report the error that stopped the opening
                self.close()
            raise

    def close(self) -> None:
        """Close them, which may report further operators; raise BackendFailed if one could not be closed."""
        close_delegates(self._specs, self._opened)


def _open(spec: DelegateSpec, delegate: Delegate, subscriptions: Sequence[Subscription]) -> Delegate | None:
    try:
        own = delegate.profiled(_reporter(spec, subscriptions))
        if own is not None and not isinstance(own, Delegate):
            raise BackendFailed(f"its profiled() returned a {type(own).__name__}, not a Delegate", remedy=AUTHOR)
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise failed(spec, error) from error
    return own


def _reporter(spec: DelegateSpec, subscriptions: Sequence[Subscription]) -> ReportOperator:
    def report(name: str, what: str, start: int, duration: int) -> None:
        event = OperatorRun(spec.backend, spec.name, name, what, start, duration)
        for subscription in subscriptions:
            subscription(event)

    return report
