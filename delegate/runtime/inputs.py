"""The inputs of a call: conversion to arrays, checks, symbolic sizes, and inputs that the method writes to.

NumPy arrays, any DLPack object, numbers and lists are accepted. NumPy has no bfloat16; programs store its raw bits as
uint16. Arrays of `ml_dtypes.bfloat16` and bfloat16 DLPack tensors are accepted, too, although neither library is
imported here.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from delegate.errors import InputError
from delegate.kernels.half_precision import to_bfloat16
from delegate.plugins import one_line
from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Number, Symbol, SymbolValues, evaluate
from delegate.program.model import (
    Input,
    MethodDefinition,
    Value,
)
from delegate.runtime.backend import Array
from delegate.runtime.platform import short_repr, translate_input_errors

_ARRAY = np.ndarray
_LAZY_BITS = ("conj", "neg")  # of torch's tensors, by the names of their methods; DLPack does not know them
_CODE = 20  # bytes from the start of a DLTensor to the code of its dtype
_BFLOAT, _UNSIGNED = 4, 1  # codes of DLPack
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_WORK = 1000  # candidates that NumPy may try to decide if two strided arrays share an element


class InputChecker:
    """Converts inputs to row-major arrays of the right dtype and shape, or raises InputError."""

    def __init__(self, method: MethodDefinition) -> None:
        self._method = method
        self._values = [method.values[i.value] if i.value >= 0 else None for i in method.inputs]
        self._numbers = {method.inputs[s.input].name for s in method.symbols if s.input >= 0 and s.dim < 0}
        self._names = [s.name for s in method.symbols]
        self._static = all(v is None or v.is_static for v in self._values)
        self._exact = [
            (v.dtype.numpy, v.shape) if v and v.is_static and v.dtype is not DType.bfloat16 else (None, None)
            for v in self._values
        ]

    def arrays(self, leaves: Sequence[Any]) -> Sequence[Array | None]:
        """Return an array per input, also for a number; None for a literal.

        Raises:
            InputError: a leaf is missing, has another dtype, rank or size, or is not the literal that export fixed.
        """
        if len(leaves) == len(self._exact):
            number = 0
            for dtype, shape in self._exact:  # the first loop of every call: zip would double its time
                leaf = leaves[number]
                if type(leaf) is not _ARRAY or leaf.shape != shape or leaf.dtype is not dtype:
                    break
                if not leaf.flags.c_contiguous:
                    break
                number += 1  # noqa: SIM113
            else:
                return leaves  # nothing to convert, as in most calls
        inputs = self._method.inputs
        if len(leaves) != len(inputs):
            names = ", ".join(i.name for i in inputs[len(leaves) :]) or "none of them"
            raise InputError(
                f"method {self._method.name} takes {len(inputs)} inputs, not {len(leaves)}", remedy=f"missing: {names}"
            )
        arrays = [self._check(*row) for row in zip(inputs, self._values, leaves, strict=True)]
        if all(array is None or array.flags.c_contiguous for array in arrays):
            return arrays
        check_guards(self._method, self.symbols(arrays))  # a view of few bytes may be a copy of many
        return [None if array is None else np.asarray(array, order="C") for array in arrays]

    def symbols(self, arrays: Sequence[Array | None]) -> SymbolValues:
        """Return the number of each symbol in these inputs, checked against its range and all other sizes."""
        numbers = SymbolValues()
        for index, symbol in enumerate(self._method.symbols):
            if symbol.input < 0:
                continue
            array = arrays[symbol.input]
            assert array is not None
            name = f"input {self._method.inputs[symbol.input].name!r}"
            number = int(array) if symbol.dim < 0 else array.shape[symbol.dim]
            what = f"{name} is {number}" if symbol.dim < 0 else f"{name} has size {number} in dimension {symbol.dim}"
            check_range(symbol, number, what)
            numbers[index] = number
        if not self._static:
            self._check_expressions(arrays, numbers)
        return numbers

    def _check(self, declared: Input, value: Value | None, leaf: Any) -> Array | None:
        with translate_input_errors(f"input {declared.name!r}"):
            return self._array(declared, value, leaf)

    def _array(self, declared: Input, value: Value | None, leaf: Any) -> Array | None:
        if value is None and declared.name in self._numbers:
            return _as_number(leaf, declared.name)
        if value is None:
            if type(leaf) is not type(declared.literal) or leaf != declared.literal:
                raise InputError(
                    f"input {declared.name!r} is {short_repr(leaf)}",
                    remedy=f"the export fixed it to {declared.literal!r}; export again for another value",
                )
            return None
        array = _to_numpy(leaf, value.dtype, declared.name)
        if array.dtype != value.dtype.numpy:
            raise InputError(
                f"input {declared.name!r} is {array.dtype}, but the program takes {_numpy_name(value.dtype)}",
                remedy=f"convert it to {value.dtype.name} first",
            )
        if len(array.shape) != len(value.shape) or any(
            size != expected
            for size, expected in zip(array.shape, value.shape, strict=True)
            if not isinstance(expected, Expr)
        ):
            raise InputError(
                f"input {declared.name!r} has the shape {list(array.shape)}, "
                f"but the program takes {self._shape(value)}",
                remedy="pass that shape, or export with dynamic shapes",
            )
        return array

    def _shape(self, value: Value) -> str:
        return "[" + ", ".join(str(d) if isinstance(d, int) else d.text(self._names) for d in value.shape) + "]"

    def _check_expressions(self, arrays: Sequence[Array | None], symbols: SymbolValues) -> None:
        symbol_names = {(s.input, s.dim): s.name for s in self._method.symbols}
        for number, (declared, value, array) in enumerate(zip(self._method.inputs, self._values, arrays, strict=True)):
            if value is None or array is None:
                continue
            for dim, expected in enumerate(value.shape):
                if isinstance(expected, Expr) and (size := evaluate(expected, symbols)) != array.shape[dim]:
                    relation = f"it must be {expected.text(self._names)}, which is {size} for these inputs"
                    if (number, dim) in symbol_names:  # it is what the symbol is solved from, as in 2 * batch
                        relation = f"it must be {symbol_names[number, dim]}, for example {size}"
                    raise InputError(
                        f"input {declared.name!r} has size {array.shape[dim]} in dimension {dim}", remedy=relation
                    )


def check_range(symbol: Symbol, number: Number, what: str) -> None:
    """Raise InputError unless an integer is in the range of its symbol; `what` describes the actual number."""
    high = symbol.maximum
    if isinstance(number, float) or (symbol.minimum <= number and (high is None or number <= high)):
        return
    allowed = f"{symbol.minimum} to {high}" if high is not None else f">= {symbol.minimum}"
    raise InputError(what, remedy=f"{symbol.name} must be {allowed}")


def check_guards(method: MethodDefinition, symbols: Mapping[int, Number]) -> None:
    """Raise InputError, with the user's names, unless the sizes satisfy all assumptions of the export."""
    names = [s.name for s in method.symbols]
    for guard in method.guards:
        if not guard.evaluate(symbols):
            sizes = ", ".join(f"{names[i]} is {symbols[i]}" for i in sorted(set(guard.free_symbols())))
            raise InputError(
                f"the sizes break an assumption of the export: {guard.text(names)}",
                where=sizes,
                remedy="pass sizes that satisfy it, or export again with other sizes or without the assumption",
            )


def _as_number(leaf: Any, name: str) -> Array:
    """Return an integer as an array of one element."""
    try:
        if isinstance(leaf, bool | np.bool_):
            raise TypeError
        return np.asarray(operator.index(leaf), np.int64)
    except (TypeError, OverflowError):
        raise InputError(f"input {name!r} is {short_repr(leaf)}", remedy="pass an integer of at most 64 bits") from None


def _numpy_name(dtype: DType) -> str:
    if dtype is DType.bfloat16:
        return "bfloat16 (of ml_dtypes, or its bits as array.view(numpy.uint16))"
    return dtype.name


def _to_numpy(leaf: Any, dtype: DType, name: str) -> Array:
    """Return an input as an array of its own dtype and shape.

    Raises:
        InputError: the input cannot become an array, or has integers in place of bfloat16 bits.
    """
    if isinstance(leaf, np.ndarray):
        # NumPy imports its masked arrays when they are first named; a fork in the middle of an import hangs the child.
        if "numpy.ma" in sys.modules and np.ma.isMaskedArray(leaf):
            raise InputError(f"input {name!r} is a masked array", remedy="fill the masked elements with .filled()")
        array = np.asarray(leaf)  # a matrix or another subclass has rules of its own
        return _bits(array, name) if dtype is DType.bfloat16 else array
    if hasattr(leaf, "__dlpack__"):
        for bit in _LAZY_BITS:
            leaf = getattr(leaf, f"resolve_{bit}")() if hasattr(leaf, f"resolve_{bit}") else leaf
        return _from_dlpack(leaf, name, dtype)
    if isinstance(leaf, bool | int | float | complex | list | tuple | np.generic):
        return _from_numbers(leaf, dtype, name)
    raise InputError(f"input {name!r} is a {type(leaf).__name__}", remedy=f"pass an array of {dtype.name}")


def _has_lazy_bit(leaf: Any) -> bool:
    """Return True for a torch tensor whose memory holds the conjugate or the negative of its values."""
    return any(hasattr(leaf, f"is_{bit}") and getattr(leaf, f"is_{bit}")() for bit in _LAZY_BITS)


def _from_numbers(leaf: Any, dtype: DType, name: str) -> Array:
    """Return an array of numbers in the dtype of the input; a NumPy number keeps its own dtype."""
    try:
        array = np.asarray(leaf)
        if isinstance(leaf, np.generic):
            return _bits(array, name) if dtype is DType.bfloat16 else array
        if array.dtype.kind in "fc" and dtype.numpy.kind in "iub" and dtype is not DType.bfloat16:
            raise TypeError(f"{array.dtype} would lose the fractional part")
        return to_bfloat16(array.astype(np.float32)) if dtype is DType.bfloat16 else np.asarray(leaf, dtype.numpy)
    except InputError:
        raise
    except Exception as error:  # objects of the caller's may raise anything
        what = f"input {name!r} cannot be converted to a tensor of {dtype.name}: {one_line(error)}"
        raise InputError(what, remedy="pass an array of that type") from error


def _bits(array: Array, name: str) -> Array:
    """Return the bits of bfloat16 numbers as uint16; the array has dtype bfloat16 or is already a uint16 view."""
    if _is_bfloat16(array):
        if not array.dtype.isnative:
            what = f"the bytes of input {name!r} have the other byte order than this machine"
            raise InputError(what, remedy="convert it: array.astype(ml_dtypes.bfloat16)")
        return array.view(np.uint16)
    if array.dtype == np.uint16 and array.base is None and array.size:
        raise InputError(
            f"input {name!r} is uint16, apparently of integers, but the program takes bfloat16",
            remedy="pass an array of ml_dtypes.bfloat16, or its bits as array.view(numpy.uint16)",
        )
    return array


def _is_bfloat16(array: Array) -> bool:
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
        raise InputError(f"input {name!r} is uint16, but the program takes bfloat16", remedy="pass a bfloat16 tensor")
    return array


class _Exported:
    """A tensor that was exported through DLPack already."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def writable_inputs(
    method: MethodDefinition, written: Sequence[int], leaves: Sequence[Any], arrays: Sequence[Array | None]
) -> list[Array]:
    """Return the caller's arrays that will be written, one per number in `written`.

    Args:
        method: the called method.
        written: numbers of its inputs.
        leaves: the caller's values of all inputs.
        arrays: the arrays of the leaves, which may be copies.

    Raises:
        InputError: an input is not an array, is read-only, or shares memory with another input or within itself.
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
            raise _sharing_error(f"elements of input {i.name!r} share memory", i.name)
    return own


def _may_overlap(arrays: Iterable[Array]) -> bool:
    """Return True if the byte range of an array overlaps another array's range."""
    bounds = sorted(map(byte_bounds, arrays))
    return any(end > start for (_, end), (start, _) in pairwise(bounds))


def _require_separate(method: MethodDefinition, number: int, target: Array, memory: Sequence[Array | None]) -> None:
    name = method.inputs[number].name
    for other, array in enumerate(memory):
        if other != number and array is not None and _share(target, array):
            raise _sharing_error(f"inputs {name!r} and {method.inputs[other].name!r} share memory", name)


def _sharing_error(what: str, name: str) -> InputError:
    """Return the error for shared memory. The export assumed separate arrays, so writes to one do not reach another."""
    return InputError(f"{what}, but the method writes to {name!r}", remedy="pass a copy of it")


def _share(first: Array, second: Array) -> bool:
    if not np.may_share_memory(first, second):
        return False
    try:
        return np.shares_memory(first, second, max_work=_WORK)  # type: ignore[arg-type]  # NumPy's stubs know two
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(array: Array) -> bool:
    """Return True if elements may share memory, which slices, transpositions and reshapes of an array never do."""
    end = array.itemsize
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True)):
        if size > 1 and step < end:
            return array.size > 0
        end += step * (size - 1)
    return False


def _writable_array(name: str, dtype: DType, leaf: Any) -> Array:
    array = np.asarray(leaf) if isinstance(leaf, np.ndarray) else None  # of a subclass, without its own rules
    if array is None and _has_lazy_bit(leaf):
        what = f"input {name!r} is a lazy conjugate or negative view of torch, but the method writes to it"
        raise InputError(what, remedy="pass it with .resolve_conj().resolve_neg()")
    if array is None and hasattr(leaf, "__dlpack__"):
        array = _to_numpy(leaf, dtype, name)
    if array is None or not array.flags.writeable:
        what = f"a {type(leaf).__name__}" if array is None else "read-only"
        raise InputError(
            f"input {name!r} is {what}, but the method writes to it", remedy="pass an array that can be written to"
        )
    return array.view(np.uint16) if _is_bfloat16(array) else array


def copy_back(own: Sequence[Array], written: Sequence[int], arrays: Sequence[Array | None]) -> None:
    """Copy new values to the caller's array if the method ran on a row-major copy of it."""
    for target, number in zip(own, written, strict=True):
        source = arrays[number]
        assert source is not None
        if not np.may_share_memory(target, source):
            np.copyto(target, source)
