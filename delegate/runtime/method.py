"""Method: one entry point of a loaded program, ready to be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from delegate.errors import DelegateError, DeviceLost, InputError
from delegate.program import model
from delegate.program.dtypes import DType
from delegate.program.expr import SymbolValues
from delegate.program.instructions import written_inputs
from delegate.program.model import Input, Ref, Tree
from delegate.runtime.arguments import leaves_of, unflatten
from delegate.runtime.arrays import Resources
from delegate.runtime.backend import Array, Delegate
from delegate.runtime.execution_plan import ExecutionPlan
from delegate.runtime.inputs import InputChecker, copy_back, writable_inputs
from delegate.runtime.lifecycle import CLOSED, FORKED, NotPicklable, Rejecting
from delegate.runtime.platform import DEFAULT, translate_binding_errors, translate_input_errors, translate_run_errors

if TYPE_CHECKING:
    from delegate.runtime.lifecycle import CallLock
    from delegate.runtime.watch import Executor, Watch


class Method(NotPicklable):
    """One entry point of a program.

    Calls from several threads are safe; calls of one context's methods run one after another, because they share
    its states, and calls of one method share its arena.

    Attributes:
        written: the numbers of the inputs that the module writes to. The caller's arrays hold the new values after a
            call, as in eager mode.
    """

    def __init__(self, resources: Resources, definition: model.MethodDefinition) -> None:
        self.definition = definition
        self._inputs = InputChecker(definition)
        self._checker: InputChecker | Rejecting = self._inputs
        self._executor: Executor
        self._lock = resources.lock
        self.written = written_inputs(resources.program, definition)
        self._positional = _only_positional_leaves(definition.in_tree)
        self._gives_leaf = definition.out_tree.kind == "leaf"
        kinds = [definition.values[o.index].dtype if isinstance(o, Ref) else None for o in definition.outputs]
        self._bits = [i for i, kind in enumerate(kinds) if kind is DType.bfloat16]  # views: they may be used as inputs
        self._bind(resources)

    def __repr__(self) -> str:
        from delegate.program.text import signature  # only people need it

        return f"<Method {signature(self.definition)}>"

    @property
    def name(self) -> str:
        """The name in the program, e.g. "forward"."""
        return self.definition.name

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The leaves of its arguments."""
        return self.definition.inputs

    @property
    def delegates(self) -> tuple[Delegate, ...]:
        """The delegates of the program."""
        return self._resources.delegates

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays (NumPy, or anything with DLPack), in the structure that the module was exported with.

        Returns:
            NumPy arrays in the structure of the module's result; a dataclass or model output becomes a `Record`.

        Raises:
            InputError: the arguments do not fit, or an array that the method writes to is read-only.
            BackendFailed, KernelError: the run failed; the next call is right again, but states may have
                been written in part: `Context.restore` a snapshot, or `reset`.
            ExecutionError: this thread is in a call of the same context; see `Context`.
        """
        leaves: Sequence[Any] = args
        if kwargs or len(args) != self._positional:
            leaves = self.leaves(args, kwargs)
        results = self.run(leaves)
        return results[0] if self._gives_leaf else unflatten(self.definition.out_tree, results)

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the flat leaves of the arguments; raise InputError if their structure differs from the export."""
        return leaves_of(self.definition, args, kwargs)

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """Run on the flat leaves of the arguments; return the flat leaves of the result."""
        arrays = self._checker.arrays(leaves)
        direct = self._direct  # a listener in another thread may exchange it
        if direct is not None:
            return direct(arrays)
        own: list[Array] = []
        if self.written:
            with translate_input_errors("an input that the method writes to"):
                own = writable_inputs(self.definition, self.written, leaves, arrays)
        try:
            lock = self._lock
            if lock.owner:
                lock.refuse_reentry()
            with lock.lock:  # as `CallLock.hold`
                lock.owner = get_ident()
                try:
                    results = self._executor.run(arrays)
                except DeviceLost as error:
                    if not self._recover_from_lost_device(error):
                        raise
                    results = self._executor.run(arrays)
                finally:
                    lock.owner = 0
        except InputError:  # inconsistent sizes, or sizes from data
            raise
        except Exception as error:
            self._abort(error)
        if own:
            copy_back(own, self.written, arrays)
        for number in self._bits:
            results[number] = results[number].view()
        return results

    def _abort(self, error: Exception) -> NoReturn:
        """Report the error of a call to the platform, and raise it as one of this project.

        What a signal handler of the program raised is raised unchanged, whatever a library has made of it.
        """
        if isinstance(error, DelegateError):
            self._resources.platform.abort(error)
            raise error
        translated = translate_run_errors(self.name).translate(error)
        self._resources.platform.abort(translated)
        raise translated from error

    def _recover_from_lost_device(self, error: DeviceLost) -> bool:
        from delegate.runtime.devices import switch_lost_devices

        return switch_lost_devices(self._resources.spaces, self.definition, error)

    def check(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return an array per input, None for a literal; raise as `run` does if they do not fit."""
        return self._checker.arrays(leaves)

    def watch(
        self, watch: Watch | None, profiled: Mapping[int, tuple[Delegate, CallLock | None]] = MappingProxyType({})
    ) -> None:
        """Observe the instructions from now on; None: stop.

        Args:
            watch: the observer.
            profiled: delegates, each with a lock, that replace the program's delegates.
        """
        with self._lock.hold():
            self._bind(self._resources._replace(watch=watch, profiled=profiled))

    def leave_to_parent(self) -> None:
        """Reject all calls in this forked process."""
        self._checker = self._executor = FORKED
        self._lock = FORKED  # type: ignore[assignment]  # every use of it raises the error

    def refuse_reentry(self) -> None:
        """Raise ExecutionError if `close` would wait for a call of this thread."""
        self._lock.refuse_reentry()
        if self._direct is not None and self._direct.lock is not None:
            self._direct.lock.refuse_reentry()

    def close(self) -> None:
        """Wait for a running call, and reject all later ones."""
        with self._lock.hold():
            self._checker = self._executor = CLOSED
        if self._direct is not None:
            self._direct.close(CLOSED)

    def _bind(self, resources: Resources) -> None:
        self._resources = resources
        executor: Executor
        direct = None
        with translate_binding_errors(self.name):
            if self.definition.symbols:
                from delegate.runtime.dynamic_shapes import DynamicExecutor  # most programs have no symbols

                executor = DynamicExecutor(resources, self.definition, self._inputs.symbols)
            else:
                executor = plan = ExecutionPlan(resources, self.definition, SymbolValues())
                direct = plan.direct if resources.platform is DEFAULT and not self._bits else None
        if resources.watch is not None:
            executor = resources.watch.executor(self.definition, executor)
        self._executor, self._direct = executor, direct


def _only_positional_leaves(tree: Tree) -> int:
    """Return the number of arguments if all are positional tensors, which need no flattening; else -1."""
    args, kwargs = tree.children
    return len(args.children) if not kwargs.children and all(c.kind == "leaf" for c in args.children) else -1
