"""Inputs that a method writes to: the caller's own arrays hold the new values behind the call, as in eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from delegate.errors import InputError
from delegate.program.dtypes import DType
from delegate.program.model import Method
from delegate.runtime.backend import Array
from delegate.runtime.given import array_of, has_lazy_bit, is_bfloat16


def own_arrays(method: Method, written: Sequence[int], leaves: Sequence[Any]) -> list[Array]:
    """The caller's arrays that will be written, one per number in `written`.

    Raises:
        InputError: one is not an array, or read-only.
    """
    given = [method.inputs[number] for number in written]
    return [_own(i.name, method.values[i.value].dtype, leaves[n]) for i, n in zip(given, written, strict=True)]


def _own(name: str, dtype: DType, leaf: Any) -> Array:
    array = np.asarray(leaf) if isinstance(leaf, np.ndarray) else None  # of a subclass, without its own rules
    if array is None and has_lazy_bit(leaf):
        what = f"input {name!r} is conjugate or negative by a bit of torch's, and the method writes to it"
        raise InputError(what, remedy="give it with .resolve_conj().resolve_neg()")
    if array is None and hasattr(leaf, "__dlpack__"):
        array = array_of(leaf, dtype, name)
    if array is None or not array.flags.writeable:
        what = f"a {type(leaf).__name__}" if array is None else "read-only"
        raise InputError(
            f"input {name!r} is {what}, and the method writes to it", remedy="give an array that can be written"
        )
    return array.view(np.uint16) if is_bfloat16(array) else array


def give_back(own: Sequence[Array], written: Sequence[int], arrays: Sequence[Array | None]) -> None:
    """Copy new values out where the method ran on a row-major copy of the caller's array."""
    for target, number in zip(own, written, strict=True):
        source = arrays[number]
        assert source is not None
        if not np.may_share_memory(target, source):
            np.copyto(target, source)
