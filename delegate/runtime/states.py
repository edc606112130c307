"""The states of a context: mutable buffers that live between calls, set back, copied out and copied in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from delegate.errors import InputError, did_you_mean
from delegate.program.dtypes import DType
from delegate.program.model import State
from delegate.runtime.backend import Array
from delegate.runtime.platform import Platform


class States:
    """One array per state of a program, in its order.

    Not thread-safe: the context that owns it guards it.

    Args:
        definitions: the program's states.
        start: the content that each starts with; not written to.
        platform: gives the memory.
    """

    def __init__(self, definitions: Sequence[State], start: Sequence[Array], platform: Platform) -> None:
        self._definitions, self._start = tuple(definitions), tuple(start)
        self.arrays = tuple(platform.empty(array.shape, array.dtype) for array in start)
        self.reset()

    @property
    def dtypes(self) -> Mapping[str, DType]:
        """The element type of each state by name."""
        return {d.name: d.dtype for d in self._definitions}

    def views(self) -> Mapping[str, Array]:
        """A read-only view of each state by name."""
        views = {}
        for definition, array in zip(self._definitions, self.arrays, strict=True):
            views[definition.name] = array.view()
            views[definition.name].flags.writeable = False
        return MappingProxyType(views)

    def reset(self) -> None:
        """Set every state back to its start."""
        for array, start in zip(self.arrays, self._start, strict=True):
            np.copyto(array, start)

    def snapshot(self) -> dict[str, Array]:
        """A copy of every state by name."""
        return {d.name: array.copy() for d, array in zip(self._definitions, self.arrays, strict=True)}

    def restore(self, snapshot: Mapping[str, Array]) -> None:
        """Copy a snapshot in; all of it or, if it does not fit, nothing.

        Raises:
            InputError: a state is missing or unknown, or an array has another dtype or shape.
        """
        names = [d.name for d in self._definitions]
        for name in snapshot:
            if name not in names:
                raise InputError(f"the program has no state {name!r}", remedy=did_you_mean(str(name), names))
        if missing := [name for name in names if name not in snapshot]:
            raise InputError(f"the snapshot lacks {', '.join(missing)}", remedy="give every state of the program")
        given = [_fitting(d, snapshot[d.name]) for d in self._definitions]
        for array, source in zip(self.arrays, given, strict=True):
            np.copyto(array, source)


def _fitting(definition: State, given: object) -> Array:
    """The array, if a state of that definition can take it."""
    if not isinstance(given, np.ndarray):
        raise InputError(f"state {definition.name!r} is a {type(given).__name__}", remedy="give a NumPy array")
    dtype, shape = definition.dtype.numpy, definition.shape
    if (given.dtype, given.shape) != (dtype, shape):
        raise InputError(
            f"state {definition.name!r} is {given.dtype}{list(given.shape)}",
            where="restore",
            remedy=f"it must be {dtype}{list(shape)}",
        )
    return given
