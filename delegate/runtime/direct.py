"""The call of a method that is one delegate, kept short: the time of a small model is the time spent in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from delegate.runtime.backend import Array
from delegate.runtime.lifecycle import Closed
from delegate.runtime.platform import no_memory
from delegate.runtime.steps import DelegateStep, outputs_not_filled


class DirectCall:
    """Gives the caller's arrays to a delegate, and the arrays that it fills to the caller.

    It needs no lock but the delegate's own, since it shares neither an arena nor states with other calls.

    Args:
        step: of the delegate.
        made: shape and dtype of every result.
        empty: makes an uninitialised array of these.
    """

    __slots__ = ("_empty", "_execute", "_lock", "_made", "_step")

    def __init__(self, step: DelegateStep, made: Sequence[tuple[Any, Any]], empty: Callable[..., Array]) -> None:
        self._step, self._made, self._empty = step, tuple(made), empty
        self._execute: Callable[[Any, Any], None] = step.delegate.execute
        self._lock = step.lock

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        try:
            outputs = [self._empty(shape, dtype) for shape, dtype in self._made]
        except (MemoryError, ValueError) as error:
            raise no_memory([shape for shape, _ in self._made], error) from error
        try:
            with self._lock:
                if self._execute(tuple(inputs), tuple(outputs)) is not None:
                    raise outputs_not_filled()
        except (Exception, SystemExit) as error:
            raise self._step.failed(error) from error
        return outputs

    def close(self, closed: Closed) -> None:
        """Wait for the call that runs, unless the delegate takes several at once, and refuse all later ones."""
        with self._lock:
            self._execute = closed.execute
