"""Inputs that a method writes to: the caller's arrays hold the new values after the call, as in eager mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from delegate.errors import InputError
from delegate.program.dtypes import DType
from delegate.program.model import Method
from delegate.runtime.backend import Array
from delegate.runtime.to_numpy import has_lazy_bit, is_bfloat16, to_numpy

_WORK = 1000  # candidates that NumPy may try to decide if two strided arrays share an element


def writable_inputs(
    method: Method, written: Sequence[int], leaves: Sequence[Any], arrays: Sequence[Array | None]
) -> list[Array]:
    """Return the caller's arrays that will be written, one per number in `written`.

    Args:
        method: the called method.
        written: numbers of its inputs.
        leaves: the caller's values of all inputs.
        arrays: the arrays of the leaves, which may be copies.

    Raises:
        InputError: an input is no array, is read-only, or shares memory with another input or within itself.
    """
    definitions = [method.inputs[number] for number in written]
    own = [
        _writable_array(i.name, method.values[i.value].dtype, leaves[n])
        for i, n in zip(definitions, written, strict=True)
    ]
    memory = [np.asarray(x) if isinstance(x, np.ndarray) else a for x, a in zip(leaves, arrays, strict=True)]
    memory = [a if a is not None and a.size else None for a in memory]
    if _may_overlap(a for a in memory if a is not None):
        for number, target in zip(written, own, strict=True):
            _require_separate(method, number, target, memory)
    for i, target in zip(definitions, own, strict=True):
        if not target.flags.c_contiguous and _overlaps_itself(target):
            raise _shared(f"elements of input {i.name!r} share memory", i.name)
    return own


def _may_overlap(arrays: Iterable[Array]) -> bool:
    """Return True if the byte range of an array overlaps that of another."""
    bounds = sorted(map(byte_bounds, arrays))
    return any(end > start for (_, end), (start, _) in pairwise(bounds))


def _require_separate(method: Method, number: int, target: Array, memory: Sequence[Array | None]) -> None:
    name = method.inputs[number].name
    for other, array in enumerate(memory):
        if other != number and array is not None and _share(target, array):
            raise _shared(f"inputs {name!r} and {method.inputs[other].name!r} share memory", name)


def _shared(what: str, name: str) -> InputError:
    """Return the error for shared memory. The export assumed separate arrays, so writes to one do not reach another."""
    return InputError(f"{what}, and the method writes to {name!r}", remedy="give a copy of it")


def _share(first: Array, second: Array) -> bool:
    if not np.may_share_memory(first, second):
        return False
    try:
        return np.shares_memory(first, second, max_work=_WORK)  # type: ignore[arg-type]  # NumPy's stubs know two
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(array: Array) -> bool:
    """Return True if elements may share memory. Slices, transpositions and reshapes of an array never do."""
    end = array.itemsize
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True)):
        if size > 1 and step < end:
            return array.size > 0
        end += step * (size - 1)
    return False


def _writable_array(name: str, dtype: DType, leaf: Any) -> Array:
    array = np.asarray(leaf) if isinstance(leaf, np.ndarray) else None  # of a subclass, without its own rules
    if array is None and has_lazy_bit(leaf):
        what = f"input {name!r} is conjugate or negative by a bit of torch's, and the method writes to it"
        raise InputError(what, remedy="give it with .resolve_conj().resolve_neg()")
    if array is None and hasattr(leaf, "__dlpack__"):
        array = to_numpy(leaf, dtype, name)
    if array is None or not array.flags.writeable:
        what = f"a {type(leaf).__name__}" if array is None else "read-only"
        raise InputError(
            f"input {name!r} is {what}, and the method writes to it", remedy="give an array that can be written"
        )
    return array.view(np.uint16) if is_bfloat16(array) else array


def copy_back(own: Sequence[Array], written: Sequence[int], arrays: Sequence[Array | None]) -> None:
    """Copy new values to the caller's array if the method ran on a row-major copy of it."""
    for target, number in zip(own, written, strict=True):
        source = arrays[number]
        assert source is not None
        if not np.may_share_memory(target, source):
            np.copyto(target, source)
