"""Conversion of the caller's inputs to arrays: NumPy arrays, any DLPack object, numbers and lists.

NumPy has no bfloat16; programs store its raw bits as uint16. Arrays of `ml_dtypes.bfloat16` and bfloat16 DLPack tensors
are accepted. Neither library is imported here.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from delegate.errors import InputError
from delegate.kernels.half_precision import to_bfloat16
from delegate.plugins import one_line
from delegate.program.dtypes import DType
from delegate.runtime.backend import Array

_LAZY_BITS = ("conj", "neg")  # of torch's tensors, by the names of their methods; DLPack does not know them
_CODE = 20  # bytes from the start of a DLTensor to the code of its dtype
_BFLOAT, _UNSIGNED = 4, 1  # codes of DLPack
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def to_numpy(leaf: Any, dtype: DType, name: str) -> Array:
    """Return an input as an array of its own dtype and shape.

    Raises:
        InputError: the input cannot become an array, or has integers in place of the bits of bfloat16.
    """
    if isinstance(leaf, np.ndarray):
        # NumPy imports its masked arrays when they are first named; a fork in the middle of an import hangs the child.
        if "numpy.ma" in sys.modules and np.ma.isMaskedArray(leaf):
            raise InputError(f"input {name!r} is a masked array", remedy="fill what is masked, with .filled()")
        array = np.asarray(leaf)  # a matrix or another subclass has rules of its own
        return _bits(array, name) if dtype is DType.bfloat16 else array
    if hasattr(leaf, "__dlpack__"):
        for bit in _LAZY_BITS:
            leaf = getattr(leaf, f"resolve_{bit}")() if hasattr(leaf, f"resolve_{bit}") else leaf
        return _from_dlpack(leaf, name, dtype)
    if isinstance(leaf, bool | int | float | complex | list | tuple | np.generic):
        return _from_numbers(leaf, dtype, name)
    raise InputError(f"input {name!r} is a {type(leaf).__name__}", remedy=f"give an array of {dtype.name}")


def has_lazy_bit(leaf: Any) -> bool:
    """Return True for a torch tensor whose memory holds the conjugate or the negative of its values."""
    return any(hasattr(leaf, f"is_{bit}") and getattr(leaf, f"is_{bit}")() for bit in _LAZY_BITS)


def _from_numbers(leaf: Any, dtype: DType, name: str) -> Array:
    """Return an array of numbers in the dtype of the input; a NumPy number keeps its own dtype."""
    try:
        array = np.asarray(leaf)
        if isinstance(leaf, np.generic):
            return _bits(array, name) if dtype is DType.bfloat16 else array
        if array.dtype.kind in "fc" and dtype.numpy.kind in "iub" and dtype is not DType.bfloat16:
            raise TypeError(f"{array.dtype} would lose its fractions")
        return to_bfloat16(array.astype(np.float32)) if dtype is DType.bfloat16 else np.asarray(leaf, dtype.numpy)
    except InputError:
        raise
    except Exception as error:  # objects of the caller's may raise anything
        what = f"input {name!r} cannot be made a tensor of {dtype.name}: {one_line(error)}"
        raise InputError(what, remedy="give an array of that type") from error


def _bits(array: Array, name: str) -> Array:
    """Return the bits of bfloat16 numbers as uint16; the array has dtype bfloat16 or is already a uint16 view."""
    if is_bfloat16(array):
        if not array.dtype.isnative:
            what = f"the bytes of input {name!r} are in the other order than this machine's"
            raise InputError(what, remedy="convert it: array.astype(ml_dtypes.bfloat16)")
        return array.view(np.uint16)
    if array.dtype == np.uint16 and array.base is None and array.size:
        raise InputError(
            f"input {name!r} is uint16, of integers as it seems, but the program takes bfloat16",
            remedy="give an array of ml_dtypes.bfloat16, or its bits: array.view(numpy.uint16)",
        )
    return array


def is_bfloat16(array: Array) -> bool:
    """Return True if an array is of `ml_dtypes.bfloat16`, by its name."""
    return array.dtype.name == "bfloat16" and array.dtype.itemsize == 2


def _from_dlpack(leaf: Any, name: str, dtype: DType) -> Array:
    if leaf.__dlpack_device__()[0] != 1:
        return np.from_dlpack(leaf)  # raises the error for memory that is not the host's
    capsule = leaf.__dlpack__()
    code = ctypes.c_uint8.from_address(_get_pointer(capsule, b"dltensor") + _CODE)
    if code.value == _BFLOAT:
        if dtype is not DType.bfloat16:
            what = f"input {name!r} is bfloat16, but the program takes {dtype.name}"
            raise InputError(what, remedy=f"convert it to {dtype.name} first")
        code.value = _UNSIGNED
        return np.from_dlpack(_Exported(capsule))
    array = np.from_dlpack(_Exported(capsule))
    if dtype is DType.bfloat16 and array.dtype == np.uint16:
        raise InputError(f"input {name!r} is uint16, but the program takes bfloat16", remedy="give a bfloat16 tensor")
    return array


class _Exported:
    """A tensor that was exported through DLPack already."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0
