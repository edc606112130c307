"""The states of a context: mutable buffers that persist between calls, with reset, snapshot and restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType, MappingProxyType
from typing import Any

import numpy as np

from delegate.errors import InputError, did_you_mean
from delegate.plugins import one_line
from delegate.program.dtypes import DType
from delegate.program.model import State
from delegate.runtime.backend import Array
from delegate.runtime.platform import Platform

Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]
Parts = Mapping[str, Index]  # of some states, by name


class States:
    """One array per state of a program, in its order.

    Not thread-safe: the context that owns it guards it.

    Args:
        definitions: the program's states.
        start: the initial content of each; not modified.
        platform: allocates the memory.
    """

    def __init__(self, definitions: Sequence[State], start: Sequence[Array], platform: Platform) -> None:
        self._definitions, self._start = tuple(definitions), tuple(start)
        self.arrays = tuple((platform.zeros if is_zeros(a) else platform.empty)(a.shape, a.dtype) for a in start)
        for array, content in zip(self.arrays, start, strict=True):
            if not is_zeros(content):
                np.copyto(array, content)

    @property
    def dtypes(self) -> Mapping[str, DType]:
        """The element type of each state, by name."""
        return {d.name: d.dtype for d in self._definitions}

    def views(self) -> Mapping[str, Array]:
        """Return a read-only view of each state by name."""
        views = {}
        for definition, array in zip(self._definitions, self.arrays, strict=True):
            views[definition.name] = array.view()
            views[definition.name].flags.writeable = False
        return MappingProxyType(views)

    def reset(self) -> None:
        """Set every state to its initial content."""
        for array, start in zip(self.arrays, self._start, strict=True):
            np.copyto(array, start)

    def snapshot(self, parts: Parts | None = None) -> dict[str, Array]:
        """Return a copy of every state by name, or of these parts of some.

        Raises:
            InputError: a state is unknown, or has no such part.
        """
        return {name: np.array(part) for name, part in self._parts(parts).items()}

    def restore(self, snapshot: Mapping[str, Array], parts: Parts | None = None) -> None:
        """Copy a snapshot in; if it does not fit, change nothing.

        Raises:
            InputError: a state is missing or unknown, or an array has another dtype or shape.
        """
        targets = self._parts(parts)
        for name in snapshot:
            if name not in targets:
                what = "the program has no state" if parts is None else "there is no part for state"
                raise InputError(f"{what} {name!r}", remedy=did_you_mean(str(name), targets))
        if missing := [name for name in targets if name not in snapshot]:
            raise InputError(f"the snapshot lacks {', '.join(missing)}", remedy="pass every state of the program")
        sources = {name: _check_fits(name, part, snapshot[name]) for name, part in targets.items()}
        arrays = self._arrays()
        for name, source in sources.items():
            arrays[name][... if parts is None else parts[name]] = source

    def _arrays(self) -> dict[str, Array]:
        return {d.name: array for d, array in zip(self._definitions, self.arrays, strict=True)}

    def _parts(self, parts: Parts | None) -> dict[str, Array]:
        arrays = self._arrays()
        return arrays if parts is None else {n: _part(str(n), arrays, index) for n, index in parts.items()}


def zeros(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return zeros for an initial state, which take no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def is_zeros(start: Array) -> bool:
    """Return True for a result of `zeros`."""
    return start.size > 1 and not any(start.strides)


def _part(name: str, arrays: Mapping[str, Array], index: Index) -> Array:
    if name not in arrays:
        raise InputError(f"the program has no state {name!r}", remedy=did_you_mean(name, arrays))
    try:
        return np.asarray(arrays[name][index])
    except (IndexError, TypeError, ValueError) as error:
        what = f"state {name!r} of shape {list(arrays[name].shape)} has no part {index}"
        raise InputError(what, where=one_line(error), remedy="pass slices and integers, as in NumPy") from error


def _check_fits(name: str, state: Array, value: object) -> Array:
    """Return the array if it fits a state or a part of one; else raise InputError."""
    if not isinstance(value, np.ndarray):
        raise InputError(f"state {name!r} is a {type(value).__name__}", remedy="pass a NumPy array")
    if (value.dtype, value.shape) != (state.dtype, state.shape):
        raise InputError(
            f"state {name!r} is {value.dtype}{list(value.shape)}",
            where="restore",
            remedy=f"it must be {state.dtype}{list(state.shape)}",
        )
    return value
