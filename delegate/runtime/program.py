"""LoadedProgram: a program with its delegates made and its methods bound."""

from __future__ import annotations

from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from delegate.errors import DelegateError, ProgramError, did_you_mean
from delegate.program import file
from delegate.program.model import Constant, Program, State
from delegate.program.task import Task
from delegate.registry import Registry, default_registry
from delegate.runtime.backend import Array, BackendRuntime, Delegate
from delegate.runtime.binding import Resources, array_of
from delegate.runtime.kernels import Kernels
from delegate.runtime.method import Method
from delegate.runtime.steps import failed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delegate.program.source import Source
    from delegate.report import Report


def load(source: Source) -> LoadedProgram:
    """Load a program file, checked whole, its delegates made, its methods bound.

    Args:
        source: a path, which is mapped; its bytes; a binary file object, read from where it stands; a `zipfile.Path` or
            a file of `importlib.resources`.

    Raises:
        ProgramError: the file is damaged, foreign, or of another version.
        BackendNotFound, BackendUnavailable, BackendFailed: a partition's backend cannot run here.
    """
    checked = Task(partial(file.load, source))
    registry = default_registry()  # plugins are looked for while checksums are computed
    return LoadedProgram(checked.result(), registry)


class LoadedProgram:
    """A program that can be called. It needs no torch.

    Methods share constants, mutable states and delegates.

    Args:
        program: verified, as `delegate.program.file.load` and `delegate.emit` give it.
        registry: where backends and kernels are looked up; the installed plugins if None.
    """

    def __init__(self, program: Program, registry: Registry | None = None) -> None:
        self.program = program
        registry = registry or default_registry()
        self._delegates = _make_delegates(program, registry)
        resources = Resources(
            program,
            tuple(_array(program, c) for c in program.constants),
            tuple(_array(program, s).copy() for s in program.states),
            self._delegates,
            Kernels(registry.kernel_tables),
        )
        try:
            self._methods = {m.name: Method(resources, m) for m in program.methods}
        except DelegateError:
            self.close()
            raise

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of its methods."""
        return tuple(self._methods)

    def method(self, name: str) -> Method:
        """A method by name; raises ProgramError for an unknown one."""
        if name not in self._methods:
            raise ProgramError(f"no method {name!r} in this program", remedy=did_you_mean(name, self._methods))
        return self._methods[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call method "forward", or the only method."""
        return self._default(*args, **kwargs)

    @cached_property
    def default_method(self) -> str:
        """The method that a call of the program means: the only one, else "forward"."""
        return self.methods[0] if len(self.methods) == 1 else "forward"

    @cached_property
    def _default(self) -> Method:
        return self.method(self.default_method)

    @cached_property
    def report(self) -> Report:
        """Who runs what, and why not elsewhere, as it was planned ahead of time."""
        from delegate.report import Report  # programs that only run do without it

        return Report.from_json(self.program.report)

    def close(self) -> None:
        """Free what the vendor libraries hold. The program cannot be called afterwards."""
        delegates, self._delegates = self._delegates, ()
        _close(delegates)
        self._methods = {}
        self.__dict__.pop("_default", None)

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
