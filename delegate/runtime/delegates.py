"""The delegates of a loaded program, one per partition: they are created, guarded and closed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from delegate.errors import BackendFailed, DelegateError
from delegate.events import Subscription, emit
from delegate.plugins import AUTHOR, one_line
from delegate.program.instructions import walk
from delegate.program.model import DelegateCall, DelegateSpec, Program
from delegate.registry import Registry
from delegate.runtime.backend import (
    Array,
    BackendRuntime,
    Delegate,
    ReportOperator,
    TensorType,
)
from delegate.runtime.lifecycle import CallLock
from delegate.runtime.steps import name_partition

if TYPE_CHECKING:
    from delegate.runtime.fallback import Fallbacks


Init = Callable[[DelegateSpec], Delegate]  # creates the delegate of a partition; it may raise any exception


def make_delegates(program: Program, init: Init, fallbacks: Fallbacks | None) -> tuple[Delegate, ...]:
    """Create the delegate of every partition; if one fails, close those created before.

    Args:
        program: verified.
        init: creates one.
        fallbacks: replace failing delegates of partitions with a fallback; None: a failure is an error.

    Raises:
        BackendError: a backend cannot be used here, or rejects its blob.
        KernelError: the fallback cannot be used either.
    """
    delegates: list[Delegate] = []
    try:
        for number, spec in enumerate(program.delegates):
            if fallbacks is not None and spec.fallback >= 0:
                delegates.append(_with_fallback(init, spec, fallbacks))
            else:
                delegates.append(_init_required(init, spec, partial(_callers, program, number)))
    except BaseException:
        with suppress(BackendFailed):  # report the error that stopped the load
            close_delegates(program.delegates, delegates)
        raise
    return tuple(delegates)


def lock_of(spec: DelegateSpec, delegate: Delegate) -> CallLock | None:
    """Return the lock of a delegate's calls; None for a thread-safe delegate."""
    return None if delegate.thread_safe else CallLock(f"partition {spec.name} of {spec.backend}")


def close_delegates(specs: Iterable[DelegateSpec], delegates: Iterable[Delegate]) -> None:
    """Free the vendor libraries' resources of every delegate.

    Args:
        specs: The delegates' specs, in their order; there may be more.
        delegates: The delegates that are closed.

    Raises:
        BackendFailed: one could not be closed, while all others are closed.
    """
    failure: DelegateError | None = None
    for spec, delegate in zip(specs, delegates, strict=False):
        try:
            delegate.close()
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            if failure is None:
                what = f"it could not be closed: {one_line(error)}"
                failure = BackendFailed(what, remedy=AUTHOR).at(f"partition {spec.name} of {spec.backend}")
                failure.__cause__ = error
    if failure is not None:
        raise failure


def _init_required(init: Init, spec: DelegateSpec, callers: Callable[[], str]) -> Delegate:
    try:
        return init(spec)
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise name_partition(spec, error, callers()) from error


def _callers(program: Program, number: int) -> str:
    """Return the methods that call a delegate, e.g. "method forward"."""
    names = [
        method.name
        for method in program.methods
        if any(isinstance(c, DelegateCall) and c.delegate == number for c in walk(method.instructions))
    ]
    return f"method{'s' * (len(names) > 1)} {', '.join(names)}" if names else ""


def _with_fallback(init: Init, spec: DelegateSpec, fallbacks: Fallbacks) -> Delegate:
    try:
        delegate = init(spec)
    except (Exception, SystemExit) as error:
        return fallbacks.create_fallback(spec, error)
    return fallbacks.with_fallback(spec, delegate)


def announce(init: Init, program: Program, clock: Callable[[], int]) -> Init:
    """Return a function that creates delegates, and sends an event for each."""
    from delegate.events.kinds import DelegateOpened

    def create(spec: DelegateSpec) -> Delegate:
        start = clock()
        delegate = init(spec)
        size = sum(len(program.segments[i]) for i in (spec.segment, *spec.data))
        emit(DelegateOpened(spec.backend, spec.name, size, start, clock() - start))
        return delegate

    return create


class InProcess:
    """Creates delegates in this process through the runtime parts of backends.

    Args:
        program: verified.
        registry: source of backends.
        trust_code: open blobs of machine code too.

    Attributes:
        runtimes: the runtime part of every backend that has created a delegate.
    """

    def __init__(self, program: Program, registry: Registry, trust_code: bool) -> None:
        self.runtimes: dict[str, BackendRuntime] = {}
        self._program, self._registry, self._trust_code = program, registry, trust_code

    def __call__(self, spec: DelegateSpec) -> Delegate:
        runtime = self.runtimes.get(spec.backend) or self._runtime(spec.backend)
        blob, *data = (memoryview(self._program.segments[i]) for i in (spec.segment, *spec.data))
        delegate = open_blob(runtime, blob, data, spec.compile_specs, trust_code=self._trust_code)
        self.runtimes[spec.backend] = runtime
        return delegate

    def _runtime(self, backend: str) -> BackendRuntime:
        runtime = self._registry.runtime(backend)()
        segments = {i for spec in self._program.delegates if spec.backend == backend for i in spec.data}
        runtime.expect(sum(len(self._program.segments[i]) for i in segments))
        return runtime

    def close(self) -> None:
        """Do nothing: no resources are left when the delegates are closed."""


def require_no_code(runtime: BackendRuntime, compile_specs: Mapping[str, Any]) -> None:
    """Raise BackendFailed if a blob with these compile specs is machine code."""
    if runtime.runs_code(compile_specs):
        raise BackendFailed(
            "its blob is machine code, which would run in this process",
            remedy="load it with trust_code=True (--trust-code) if you trust its source",
        )


def open_blob(
    runtime: BackendRuntime,
    blob: memoryview,
    data: Sequence[memoryview],
    compile_specs: Mapping[str, Any],
    *,
    trust_code: bool,
) -> Delegate:
    """Create a guarded delegate through a runtime part.

    Raises:
        BackendFailed: the blob is code and is not trusted, or the result is not a delegate.
        Exception: any, of the runtime part.
    """
    if not trust_code:
        require_no_code(runtime, compile_specs)
    delegate = runtime.init_with_data(blob, data, compile_specs) if data else runtime.init(blob, compile_specs)
    if not isinstance(delegate, Delegate):
        raise BackendFailed(f"its init() returned a {type(delegate).__name__}, not a Delegate", remedy=AUTHOR)
    return GuardedDelegate(delegate)


class GuardedDelegate(Delegate):
    """A delegate that passes views on each call's arrays to a backend's delegate.

    The arrays belong to the caller, to the arena or to a state. The backend may write only to the outputs, and only
    during the call: its views of the inputs are read-only, and its views of the outputs become read-only afterwards.
    A `DeviceTensor` is its own view.

    Args:
        delegate: the backend's own.
    """

    def __init__(self, delegate: Delegate) -> None:
        self._delegate, self._execute, self.thread_safe = delegate, delegate.execute, delegate.thread_safe

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        self._delegate.prepare(inputs, outputs)

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Run on views of the arrays, in tuples: a list would accept `outputs[0] = result`, which fills no array.

        Raises:
            BackendFailed: the backend returned a value, or changed the shape, dtype or strides of an output.
            Exception: any, of the backend.
        """
        # Every call pays for this code: comprehensions, zip, enumerate and helper functions would double its time.
        read, filled, number = [], [], 0
        for array in inputs:
            view = array[...]
            view.setflags(False)
            read.append(view)
        for array in outputs:
            filled.append(array[...])  # noqa: PERF401
        if self._execute(tuple(read), tuple(filled)) is not None:
            raise _return_error()
        for view in filled:
            array = outputs[number]
            if view.strides != array.strides or view.dtype is not array.dtype:  # another shape has other strides
                raise _other_layout(view, array)
            view.setflags(False)
            number += 1  # noqa: SIM113

    def profiled(self, report: ReportOperator) -> Delegate | None:
        profiled = self._delegate.profiled(report)
        return GuardedDelegate(profiled) if isinstance(profiled, Delegate) else profiled

    def close(self) -> None:
        self._delegate.close()


def _return_error() -> BackendFailed:
    """Return the error for an `execute` that returns a value, such as its results, and does not fill `outputs`."""
    return BackendFailed("its execute() must fill `outputs` and return None, but returned a value", remedy=AUTHOR)


def _other_layout(view: Array, array: Array) -> BackendFailed:
    """Return the error for an `execute` that changed the layout of an output, so that its numbers are misplaced."""
    what = next(what for what in ("shape", "dtype", "strides") if getattr(view, what) != getattr(array, what))
    before, after = (list(v) if isinstance(v, tuple) else v for v in (getattr(array, what), getattr(view, what)))
    return BackendFailed(f"its execute() changed the {what} of an output from {before} to {after}", remedy=AUTHOR)


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
        raise name_partition(spec, error) from error
    return own


def _reporter(spec: DelegateSpec, subscriptions: Sequence[Subscription]) -> ReportOperator:
    from delegate.events.kinds import OperatorRun

    def report(name: str, what: str, start: int, duration: int) -> None:
        event = OperatorRun(spec.backend, spec.name, name, what, start, duration)
        for subscription in subscriptions:
            subscription(event)

    return report
