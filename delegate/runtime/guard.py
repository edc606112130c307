"""A backend's delegate behind views on each call's arrays, so that it cannot damage what others use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delegate.errors import BackendFailed
from delegate.plugins import AUTHOR
from delegate.runtime.backend import Array, Delegate, DeviceTensor, ReportOperator, TensorType


class GuardedDelegate(Delegate):
    """A delegate that passes views on each call's arrays to a backend's delegate.

    The arrays belong to the caller, to the arena or to a state. The backend may write only to the outputs, and only
    during the call: its views of the inputs are read-only, and its views of the outputs become read-only afterwards.

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
            raise _returned_value()
        for view in filled:
            array = outputs[number]
            if view.strides != array.strides or view.dtype is not array.dtype:  # another shape has other strides
                raise _other_layout(view, array)
            view.setflags(False)
            number += 1  # noqa: SIM113

    def profiled(self, report: ReportOperator) -> Delegate | None:
        profiled = self._delegate.profiled(report)
        return type(self)(profiled) if isinstance(profiled, Delegate) else profiled

    def close(self) -> None:
        self._delegate.close()


class GuardedDeviceDelegate(GuardedDelegate):
    """A guarded delegate of a backend with device memory. It gets a `DeviceTensor` as it is."""

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """See `GuardedDelegate.execute`."""
        read, filled = tuple(map(_view, inputs)), tuple(map(_view, outputs))
        for view in read:
            _make_read_only(view)
        if self._execute(read, filled) is not None:
            raise _returned_value()
        for view, array in zip(filled, outputs, strict=True):
            if isinstance(view, DeviceTensor):
                continue
            if view.strides != array.strides or view.dtype is not array.dtype:
                raise _other_layout(view, array)
            _make_read_only(view)


def _view(tensor: Array | DeviceTensor) -> Array | DeviceTensor:
    return tensor if isinstance(tensor, DeviceTensor) else tensor.view()


def _make_read_only(tensor: Array | DeviceTensor) -> None:
    if not isinstance(tensor, DeviceTensor):
        tensor.setflags(write=False)


def _returned_value() -> BackendFailed:
    """Return the error for an `execute` that returns a value, such as its results, and does not fill `outputs`."""
    return BackendFailed("its execute() must fill `outputs` and return None, but returned a value", remedy=AUTHOR)


def _other_layout(view: Array, array: Array) -> BackendFailed:
    """Return the error for an `execute` that changed the layout of an output, so that its numbers are misplaced."""
    what = next(what for what in ("shape", "dtype", "strides") if getattr(view, what) != getattr(array, what))
    before, after = (list(v) if isinstance(v, tuple) else v for v in (getattr(array, what), getattr(view, what)))
    return BackendFailed(f"its execute() changed the {what} of an output from {before} to {after}", remedy=AUTHOR)
