"""The steps of an execution plan: small callables over arrays that are set at binding or in a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from delegate.errors import BackendError, BackendFailed, DelegateError, KernelError
from delegate.plugins import AUTHOR, PORTABLE, one_line
from delegate.program.model import DelegateSpec
from delegate.runtime.backend import Array, Delegate, TensorType
from delegate.runtime.lifecycle import CallLock, Rejecting, hold
from delegate.runtime.platform import no_memory

if TYPE_CHECKING:
    from delegate.kernels.table import Kernel


class Step(Protocol):
    """A step of an execution plan."""

    def __call__(self) -> None:
        """Run it."""

    def translate(self, error: BaseException) -> DelegateError:
        """Return the error for the user, in place of the one that the step raised."""


def run_steps(steps: Iterable[Step]) -> None:
    """Run steps in order; raise the translated error of a failing step."""
    step: Step | None = None
    try:
        for step in steps:
            step()
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        assert step is not None
        failure = step.translate(error)
        if failure is error:
            raise
        raise failure from error


class KernelStep:
    """Runs a kernel: `function(*args, out=...)`. Entries of `args` and `outs` may be replaced in each call."""

    __slots__ = ("args", "function", "library", "outs", "place", "single")

    def __init__(self, kernel: Kernel, args: list[Any], outs: list[Any], place: str) -> None:
        self.function, self.library = kernel.function, kernel.library
        self.args, self.outs, self.place = args, outs, place
        self.single = len(outs) == 1

    def __call__(self) -> None:
        self.function(*self.args, out=self.outs[0] if self.single else tuple(self.outs))

    def translate(self, error: BaseException) -> DelegateError:
        """Return the error that names the failed instruction."""
        if isinstance(error, DelegateError):
            return error if error.where else error.at(self.place)
        return KernelError(f"the kernel failed: {one_line(error)}", where=self.place)


class ForeignStep(KernelStep):
    """Runs a third party's kernel. It raises an error if the kernel returns results instead of filling `out`."""

    __slots__ = ()

    def __call__(self) -> None:
        out = self.outs[0] if self.single else tuple(self.outs)
        result = self.function(*self.args, out=out)
        if result is not None and result is not out:
            raise KernelError(f"the kernel returned a {type(result).__name__}; it must fill `out`", where=self.place)


class ConvertedStep(KernelStep):
    """Runs a kernel on objects that `convert` creates from NumPy arrays.

    Fixed entries are converted once, at binding, and only entries that are replaced in each call are converted again.
    """

    __slots__ = ("convert", "fixed", "ready", "ready_outs", "varying", "varying_outs")

    def __init__(self, kernel: Kernel, args: list[Any], outs: list[Any], place: str) -> None:
        super().__init__(kernel, args, outs, place)
        assert kernel.convert is not None
        self.convert = kernel.convert
        self.ready, self.varying = self._convert_fixed(args)
        self.ready_outs, self.varying_outs = self._convert_fixed(outs)
        self.fixed = not self.varying and not self.varying_outs and self.single

    def _convert_fixed(self, entries: list[Any]) -> tuple[list[Any], list[int]]:
        varying = [i for i, e in enumerate(entries) if e is None or (isinstance(e, list) and any(x is None for x in e))]
        return [None if i in varying else self.convert(e) for i, e in enumerate(entries)], varying

    def __call__(self) -> None:
        if self.fixed:
            self.function(*self.ready, out=self.ready_outs[0])
            return
        args, outs = self.ready.copy(), self.ready_outs.copy()  # copies, so that the caller's arrays are not kept alive
        for i in self.varying:
            args[i] = self.convert(self.args[i])
        for i in self.varying_outs:
            outs[i] = self.convert(self.outs[i])
        self.function(*args, out=outs[0] if self.single else tuple(outs))


class CopiedViewStep(KernelStep):
    """Runs a view operator whose strides allow no view: on a row-major copy, with the result copied out."""

    __slots__ = ()

    def __call__(self) -> None:
        views = self.function(np.ascontiguousarray(self.args[0]).reshape(self.args[0].shape), *self.args[1:])
        for out, view in zip(self.outs, [views] if isinstance(views, np.ndarray) else views, strict=True):
            np.copyto(out, view)


def kernel_step(kernel: Kernel, args: list[Any], outs: list[Any], place: str) -> KernelStep:
    """Return the step that runs a kernel on these arguments and results."""
    if kernel.convert is not None:
        return ConvertedStep(kernel, args, outs, place)
    own = KernelStep if kernel.library == PORTABLE else ForeignStep
    return (CopiedViewStep if kernel.is_view else own)(kernel, args, outs, place)


class DelegateStep:
    """Runs a delegate with its lock held, because other contexts run the same delegate."""

    __slots__ = ("delegate", "inputs", "lock", "outputs", "spec")

    def __init__(
        self,
        delegate: Delegate,
        lock: CallLock | None,
        inputs: list[Any],
        outputs: list[Any],
        spec: DelegateSpec,
    ) -> None:
        self.delegate, self.lock, self.inputs, self.outputs, self.spec = delegate, lock, inputs, outputs, spec

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        """Let the delegate check its tensors; raise the translated error."""
        try:
            with hold(self.lock):
                self.delegate.prepare(inputs, outputs)
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            raise self.translate(error) from error

    def __call__(self) -> None:
        lock = self.lock
        if lock is None:
            self.delegate.execute(self.inputs, self.outputs)
            return
        if lock.owner:
            lock.refuse_reentry()
        with lock.lock:  # as `CallLock.hold`
            lock.owner = get_ident()
            try:
                self.delegate.execute(self.inputs, self.outputs)
            finally:
                lock.owner = 0

    def translate(self, error: BaseException) -> DelegateError:
        """Return the error that names the failed partition."""
        return name_partition(self.spec, error)


class SingleDelegateFastPath:
    """The call of a method that is one delegate: passes the caller's arrays to the delegate, and returns its outputs.

    It is short because a small model spends its time in Python. It needs no lock but the delegate's own, because it
    shares neither an arena nor states with other calls.

    Args:
        step: The step that runs the delegate.
        types: shape and dtype of every result.
        empty: returns an uninitialised array of a shape and dtype.

    Attributes:
        lock: The delegate's lock.
    """

    __slots__ = ("_empty", "_execute", "_step", "_types", "lock")

    def __init__(self, step: DelegateStep, types: Sequence[tuple[Any, Any]], empty: Callable[..., Array]) -> None:
        self._step, self._types, self._empty = step, tuple(types), empty
        self._execute: Callable[[Any, Any], None] = step.delegate.execute
        self.lock = step.lock

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        outputs: list[Array] = []
        try:
            for shape, dtype in self._types:  # a comprehension would take twice the time
                outputs.append(self._empty(shape, dtype))
        except (MemoryError, ValueError) as error:
            raise no_memory([shape for shape, _ in self._types], error) from error
        lock = self.lock
        try:
            if lock is None:
                self._execute(inputs, outputs)
                return outputs
            if lock.owner:
                lock.refuse_reentry()
            with lock.lock:  # as `CallLock.hold`
                lock.owner = get_ident()
                try:
                    self._execute(inputs, outputs)
                finally:
                    lock.owner = 0
        except (Exception, SystemExit) as error:
            raise self._step.translate(error) from error
        return outputs

    def close(self, closed: Rejecting) -> None:
        """Wait for a running call, unless the delegate is thread-safe, and reject all later ones."""
        with hold(self.lock):
            self._execute = closed.execute


def name_partition(spec: DelegateSpec, error: BaseException, callers: str = "") -> DelegateError:
    """Return the error that names the partition; of the error's own class if it is one of this project's.

    Args:
        spec: The spec of the partition's delegate.
        error: that the backend raised.
        callers: the methods that run the partition, e.g. "method forward", if they are known.
    """
    if not isinstance(error, DelegateError):
        error = BackendFailed(one_line(error), remedy=AUTHOR)
    place = f"partition {spec.name} of {spec.backend}{f' in {callers}' if callers else ''}"
    return error.at(place, _fallback_remedy(spec, error))


def _fallback_remedy(spec: DelegateSpec, error: DelegateError) -> str:
    """Return the way to run the partition on kernels instead."""
    if not isinstance(error, BackendError):
        return ""
    how = "lower with fallback.keep: true" if spec.fallback < 0 else 'load it with fallback="warn"'
    return f"{how} to run it on portable kernels"


class CompactStep:
    """Copies an array: a strided one to row-major order for a delegate, or a new value of a state."""

    __slots__ = ("source", "target")

    def __init__(self, source: Array, target: Array) -> None:
        self.source, self.target = [source], target

    def __call__(self) -> None:
        np.copyto(self.target, self.source[0])

    def translate(self, error: BaseException) -> DelegateError:
        """Return the error for a failed copy."""
        return KernelError(f"a copy failed: {error}")
