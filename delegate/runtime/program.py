"""LoadedProgram: a program with its delegates made, and the contexts that it is called in."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from delegate.errors import DelegateError, ProgramError
from delegate.program import file
from delegate.program.model import Constant, Program, State
from delegate.program.task import Task
from delegate.registry import Registry, default_registry
from delegate.runtime.backend import Array, BackendRuntime, Delegate
from delegate.runtime.binding import Resources, array_of
from delegate.runtime.context import Context
from delegate.runtime.kernels import kernels_of
from delegate.runtime.steps import failed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delegate.kernels.libraries import Wanted
    from delegate.program.source import Source
    from delegate.report import Report


def load(source: Source, *, kernels: Wanted | None = None) -> LoadedProgram:
    """Load a program file, checked whole, its delegates made, its methods bound.

    Args:
        source: a path, which is mapped; its bytes; a binary file object, read from where it stands; a `zipfile.Path` or
            a file of `importlib.resources`.
        kernels: kernel libraries in order of preference, each a name ("aten": torch's own kernels) or a `KernelTable`
            of the caller's own; "portable" comes last where it is not named. None: those of the installed plugins, then
            "portable".

    Raises:
        ProgramError: the file is damaged, foreign, or of another version.
        KernelError: a kernel library cannot be used, or none has a kernel that the program needs.
        BackendNotFound, BackendUnavailable, BackendFailed: a partition's backend cannot run here.
    """
    checked = Task(partial(file.load, source))
    registry = default_registry()  # plugins are looked for while checksums are computed
    return LoadedProgram(checked.result(), registry, kernels)


class LoadedProgram(Context):
    """A program that can be called. It needs no torch.

    It is a context itself, the default one; `context` gives more of them, each with states of its own.

    Args:
        program: verified, as `delegate.program.file.load` and `delegate.emit` give it.
        registry: where backends and kernels are looked up; the installed plugins if None.
        kernels: see `load`.
    """

    def __init__(self, program: Program, registry: Registry | None = None, kernels: Wanted | None = None) -> None:
        self.program = program
        registry = registry or default_registry()
        chosen = kernels_of(registry, kernels)
        delegates = _make_delegates(program, registry)
        self._shared = Resources(
            program=program,
            constants=tuple(_array(program, c) for c in program.constants),
            delegates=delegates,
            guards=tuple(nullcontext() if d.thread_safe else Lock() for d in delegates),
            kernels=chosen,
            states=tuple(_array(program, s) for s in program.states),
            lock=Lock(),
        )
        self._contexts: WeakSet[Context] = WeakSet()
        try:
            super().__init__(self._shared)
        except DelegateError:
            _close(delegates)
            raise

    def context(self) -> Context:
        """A new context: the same methods, whose states start anew and are shared with no other context.

        Raises:
            ProgramError: the program is closed.
        """
        if not self._methods:
            raise ProgramError("the program is closed", remedy="load it again")
        made = Context(self._shared)
        self._contexts.add(made)
        return made

    @cached_property
    def report(self) -> Report:
        """Who runs what, and why not elsewhere, as it was planned ahead of time."""
        from delegate.report import Report  # programs that only run do without it

        return Report.from_json(self.program.report)

    def close(self) -> None:
        """Free what the vendor libraries hold. Neither the program nor a context of it can be called afterwards."""
        for context in list(self._contexts):
            context.close()
        super().close()
        delegates, self._shared = self._shared.delegates, replace(self._shared, delegates=())
        _close(delegates)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_delegates(program: Program, registry: Registry) -> tuple[Delegate, ...]:
    runtimes: dict[str, BackendRuntime] = {}
    made: list[Delegate] = []
    for spec in program.delegates:
        try:
            if spec.backend not in runtimes:
                runtimes[spec.backend] = registry.runtime(spec.backend)()
            blob = memoryview(program.segments[spec.segment])
            made.append(runtimes[spec.backend].init(blob, spec.compile_specs))
        except Exception as error:  # a plugin may raise anything
            _close(made)
            raise failed(spec, error) from error
    return tuple(made)


def _close(delegates: Iterable[Delegate]) -> None:
    for delegate in delegates:
        delegate.close()


def _array(program: Program, tensor: Constant | State) -> Array:
    return array_of(program.segments[tensor.segment], tensor.dtype, tensor.shape)
