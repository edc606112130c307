"""Partitions on portable kernels, if a delegate cannot be created or fails in a call.

A failure is final: after it, a partition uses its fallback until the program is loaded again. The failed call is
completed on the fallback, which computes all outputs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from delegate.common.user_warnings import warn_user
from delegate.plugins import one_line
from delegate.program.model import DelegateSpec
from delegate.runtime.arrays import Resources
from delegate.runtime.backend import Delegate, DeviceTensor, ReportOperator, TensorType
from delegate.runtime.lifecycle import CallLock, is_reentry
from delegate.runtime.method import Method


@dataclass(frozen=True, slots=True)
class FallbackEvent:
    """A deviation from the plan: mostly a partition on portable kernels instead of its delegate.

    Args:
        partition: its name.
        backend: its planned backend.
        when: "load" or "run": the time of the failure. "memory": it still runs on its backend, whose device had no
            memory for its results. "close": it ran there, and could not be closed.
        reason: the failure, on one line.
    """

    partition: str
    backend: str
    when: str
    reason: str

    def __str__(self) -> str:
        if self.when == "memory":
            failure = f"{self.backend} could not allocate memory: {self.reason}"
            return f"{self.partition} writes its results to the host because {failure}"
        if self.when == "close":
            return f"partition {self.partition} of {self.backend} could not be closed: {self.reason}"
        failure = f"{self.backend} failed at {self.when}: {self.reason}"
        return f"partition {self.partition} runs on portable kernels because {failure}"


class Fallbacks:
    """The fallbacks of one loaded program.

    Args:
        resources: The program's resources.
        warn: True for one RuntimeWarning per partition that uses its fallback.
    """

    def __init__(self, resources: Resources, *, warn: bool) -> None:
        self.events: list[FallbackEvent] = []
        self._resources, self._warn = resources, warn
        self._delegates: list[_FallbackOnFailure] = []

    def create_fallback(self, spec: DelegateSpec, error: BaseException) -> Delegate:
        """Return the fallback of a partition without a delegate; raise KernelError if a kernel is missing."""
        fallback = self.delegate(spec)
        self.record(spec, "load", error)
        return fallback

    def with_fallback(self, spec: DelegateSpec, delegate: Delegate) -> Delegate:
        """Return a delegate that is replaced by its fallback in the first call that fails."""
        wrapper = _FallbackOnFailure(spec, delegate, self)
        self._delegates.append(wrapper)
        return wrapper

    def switch_space(self, space: int, error: BaseException) -> bool:
        """Run all partitions of a memory space on their fallbacks, and return True if that changes anything."""
        changed = [d.switch_to_fallback(error) for d in self._delegates if d.spec.space == space]  # all of them
        return any(changed)

    def delegate(self, spec: DelegateSpec) -> Delegate:
        """Return the fallback of a partition, bound."""
        lock = CallLock(f"the fallback of partition {spec.name}")  # a caller holds its own lock during the call
        own = self._resources._replace(lock=lock)
        return _OnKernels(Method(own, own.program.fallbacks[spec.fallback]))

    def record(self, spec: DelegateSpec, when: str, error: BaseException) -> None:
        """Record, and warn if requested, that a fallback is used from now on."""
        event = FallbackEvent(spec.name, spec.backend, when, one_line(error))
        if event in self.events:  # of another context
            return
        self.events.append(event)
        self._resources.platform.log("info", str(event))
        if self._warn:
            warn_user(str(event))


class _OnKernels(Delegate):
    """A partition run by its fallback method."""

    thread_safe = True  # a method has a lock

    def __init__(self, method: Method) -> None:
        self._method = method

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        results = self._method.run([i.fetch() if isinstance(i, DeviceTensor) else i for i in inputs])
        for output, result in zip(outputs, results, strict=True):
            if isinstance(output, DeviceTensor):
                output.host = result  # not written to the device, which may have failed
            else:
                np.copyto(output, result)


class _FallbackOnFailure(Delegate):
    """A delegate that switches to its fallback at its first failure."""

    def __init__(self, spec: DelegateSpec, delegate: Delegate, fallbacks: Fallbacks) -> None:
        self.spec, self._delegate, self._fallbacks = spec, delegate, fallbacks
        self._own = self._execute = delegate.execute
        self._lock = CallLock(f"partition {spec.name} of {spec.backend}")
        self.thread_safe = delegate.thread_safe

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        try:
            if self._execute is self._own:
                self._delegate.prepare(inputs, outputs)
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            self.switch_to_fallback(error)

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        execute = self._execute
        try:
            execute(inputs, outputs)
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            if execute is not self._own or is_reentry(error):
                raise
            self.switch_to_fallback(error)
            self._execute(inputs, outputs)

    def profiled(self, report: ReportOperator) -> Delegate | None:
        inner = self._delegate.profiled(report) if self._execute is self._own else None
        return None if inner is None else _FallbackOnFailure(self.spec, inner, self._fallbacks)

    def close(self) -> None:
        try:
            self._delegate.close()
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            self._fallbacks.record(self.spec, "close", error)

    def switch_to_fallback(self, error: BaseException) -> bool:
        """Use the fallback from now on, because of an error, and return False if it was used before."""
        with self._lock.hold():  # calls of several threads may fail at once
            if self._execute is not self._own:
                return False
            self._execute = self._fallbacks.delegate(self.spec).execute
            self._fallbacks.record(self.spec, "run", error)
            return True
