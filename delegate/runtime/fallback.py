"""Partitions on portable kernels: what runs where a delegate cannot be made, or fails at a call.

A failure is final: once its delegate has failed, a partition stays on its fallback until the program is loaded again.
The call that met the failure is finished on the fallback, which computes all outputs anew.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from delegate.errors import Stopped
from delegate.plugins import one_line
from delegate.program.model import DelegateSpec
from delegate.runtime.backend import Delegate, DeviceTensor, TensorType
from delegate.runtime.method import Method
from delegate.runtime.resources import Resources
from delegate.runtime.steps import outputs_not_filled


@dataclass(frozen=True, slots=True)
class FallbackEvent:
    """A partition that does not run as planned, mostly on portable kernels instead of its delegate.

    Args:
        partition: its name.
        backend: that was to run it.
        when: "load" or "run": when the delegate failed. "memory": it still runs on its backend,
            whose device had no memory for what it gives to others. "close": it has run there, and could not be closed.
        reason: what the failure was, on one line.
    """

    partition: str
    backend: str
    when: str
    reason: str

    def __str__(self) -> str:
        if self.when == "memory":
            return f"{self.partition} gives its results to the host, for {self.backend} has no memory: {self.reason}"
        if self.when == "close":
            return f"partition {self.partition} of {self.backend} could not be closed: {self.reason}"
        failure = f"{self.backend} failed at {self.when}: {self.reason}"
        return f"partition {self.partition} runs on portable kernels, because {failure}"


class Fallbacks:
    """The fallbacks of one loaded program.

    Args:
        resources: of the program.
        warn: whether the use of a fallback is a RuntimeWarning, once per partition.
    """

    def __init__(self, resources: Resources, *, warn: bool) -> None:
        self.events: list[FallbackEvent] = []
        self._resources, self._warn = resources, warn
        self._delegates: list[_UntilItFails] = []

    def create_fallback(self, spec: DelegateSpec, error: BaseException) -> Delegate:
        """What runs a partition whose delegate could not be made; raises KernelError where a kernel is missing."""
        made = self.delegate(spec)
        self.note(spec, "load", error)
        return made

    def with_fallback(self, spec: DelegateSpec, delegate: Delegate) -> Delegate:
        """The delegate, replaced by its fallback at the first call that fails."""
        made = _UntilItFails(spec, delegate, self)
        self._delegates.append(made)
        return made

    def forget_delegates(self) -> None:
        """Forget the delegates, which are made anew; what has happened stays told."""
        self._delegates.clear()

    def leave(self, space: int, error: BaseException) -> bool:
        """Have all partitions of a memory space run on their fallbacks; whether that changes anything."""
        left = [d.leave(error) for d in self._delegates if d.spec.space == space]  # all of them
        return any(left)

    def delegate(self, spec: DelegateSpec) -> Delegate:
        """The fallback of a partition, bound."""
        own = self._resources._replace(lock=threading.Lock())  # a caller holds its own meanwhile
        return _OnKernels(Method(own, own.program.fallbacks[spec.fallback]))

    def note(self, spec: DelegateSpec, when: str, error: BaseException) -> None:
        """Keep, and tell if wanted, that a fallback is used from now on."""
        event = FallbackEvent(spec.name, spec.backend, when, one_line(error))
        if event in self.events:  # of another context
            return
        self.events.append(event)
        self._resources.platform.log("info", str(event))
        if self._warn:
            warnings.warn(str(event), RuntimeWarning, stacklevel=2)


class _OnKernels(Delegate):
    """A partition run by the method that is its fallback."""

    thread_safe = True  # a method has a lock

    def __init__(self, method: Method) -> None:
        self._method = method

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        results = self._method.run([i.fetch() if isinstance(i, DeviceTensor) else i for i in inputs])
        for output, result in zip(outputs, results, strict=True):
            if isinstance(output, DeviceTensor):
                output.host = result  # not written there: the device may be the reason for all this
            else:
                np.copyto(output, result)


class _UntilItFails(Delegate):
    """A delegate until it fails, then its fallback."""

    def __init__(self, spec: DelegateSpec, delegate: Delegate, fallbacks: Fallbacks) -> None:
        self.spec, self._delegate, self._fallbacks = spec, delegate, fallbacks
        self._own = self._execute = delegate.execute
        self._lock = threading.Lock()
        self.thread_safe = delegate.thread_safe

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        try:
            if self._execute is self._own:
                self._delegate.prepare(inputs, outputs)
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            self.leave(error)

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        execute = self._execute
        try:
            if execute(inputs, outputs) is not None:
                raise outputs_not_filled()
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            if execute is not self._own or isinstance(error, Stopped):
                raise
            self.leave(error)
            self._execute(inputs, outputs)

    def interrupt(self) -> None:
        self._delegate.interrupt()

    def close(self) -> None:
        try:
            self._delegate.close()
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            self._fallbacks.note(self.spec, "close", error)

    def leave(self, error: BaseException) -> bool:
        """Use the fallback from now on, because of an error; whether it was not used before."""
        with self._lock:  # calls of several threads may fail at once
            if self._execute is not self._own:
                return False
            self._execute = self._fallbacks.delegate(self.spec).execute
            self._fallbacks.note(self.spec, "run", error)
            return True
