"""Checks of the caller's inputs, and the symbolic sizes in their shapes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from delegate.errors import InputError
from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Number, Symbols, evaluate
from delegate.program.model import Input, Method, Symbol, Value
from delegate.runtime.backend import Array
from delegate.runtime.to_numpy import to_numpy
from delegate.runtime.translate_errors import short_repr, translate_input_errors

_ARRAY = np.ndarray


class InputChecker:
    """Converts inputs to row-major arrays of the right dtype and shape, or raises InputError."""

    def __init__(self, method: Method) -> None:
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
            for leaf, (dtype, shape) in zip(leaves, self._exact):  # noqa: B905 - the first loop of every call
                if type(leaf) is not _ARRAY or leaf.shape != shape or leaf.dtype is not dtype:
                    break
                if not leaf.flags.c_contiguous:
                    break
            else:
                return leaves  # nothing to convert, as in most calls
        inputs = self._method.inputs
        if len(leaves) != len(inputs):
            names = ", ".join(i.name for i in inputs[len(leaves) :]) or "none of them"
            raise InputError(
                f"method {self._method.name} takes {len(inputs)} inputs, not {len(leaves)}", remedy=f"missing: {names}"
            )
        arrays = [self._checked(*row) for row in zip(inputs, self._values, leaves, strict=True)]
        if all(array is None or array.flags.c_contiguous for array in arrays):
            return arrays
        check_guards(self._method, self.symbols(arrays))  # a view of few bytes may be a copy of many
        return [None if array is None else np.asarray(array, order="C") for array in arrays]

    def symbols(self, arrays: Sequence[Array | None]) -> Symbols:
        """Return the number of each symbol in these inputs, checked against its range and all other sizes."""
        numbers = Symbols()
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

    def _checked(self, declared: Input, value: Value | None, leaf: Any) -> Array | None:
        with translate_input_errors(f"input {declared.name!r}"):
            return self._array(declared, value, leaf)

    def _array(self, declared: Input, value: Value | None, leaf: Any) -> Array | None:
        if value is None and declared.name in self._numbers:
            return _as_number(leaf, declared.name)
        if value is None:
            if type(leaf) is not type(declared.literal) or leaf != declared.literal:
                raise InputError(
                    f"input {declared.name!r} is {short_repr(leaf)}",
                    remedy=f"export fixed it to {declared.literal!r}; export again for another value",
                )
            return None
        array = to_numpy(leaf, value.dtype, declared.name)
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
                remedy="give that shape, or export with dynamic shapes",
            )
        return array

    def _shape(self, value: Value) -> str:
        return "[" + ", ".join(str(d) if isinstance(d, int) else d.text(self._names) for d in value.shape) + "]"

    def _check_expressions(self, arrays: Sequence[Array | None], symbols: Symbols) -> None:
        symbol_names = {(s.input, s.dim): s.name for s in self._method.symbols}
        for number, (declared, value, array) in enumerate(zip(self._method.inputs, self._values, arrays, strict=True)):
            if value is None or array is None:
                continue
            for dim, expected in enumerate(value.shape):
                if isinstance(expected, Expr) and (size := evaluate(expected, symbols)) != array.shape[dim]:
                    relation = f"it must be {expected.text(self._names)}, which is {size} for these inputs"
                    if (number, dim) in symbol_names:  # it is what the symbol is solved from, as in 2 * batch
                        relation = f"it must be {symbol_names[number, dim]}, as {size} is"
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


def check_guards(method: Method, symbols: Mapping[int, Number]) -> None:
    """Raise InputError, with the user's names, unless the sizes satisfy all assumptions of the export."""
    names = [s.name for s in method.symbols]
    for guard in method.guards:
        if not guard.evaluate(symbols):
            sizes = ", ".join(f"{names[i]} is {symbols[i]}" for i in sorted(set(guard.free_symbols())))
            raise InputError(
                f"the sizes break what the export assumed: {guard.text(names)}",
                where=sizes,
                remedy="give sizes that fit it, or export with others or without the assumption",
            )


def _as_number(leaf: Any, name: str) -> Array:
    """Return an integer as an array of one element."""
    try:
        if isinstance(leaf, bool | np.bool_):
            raise TypeError
        return np.asarray(operator.index(leaf), np.int64)
    except (TypeError, OverflowError):
        raise InputError(f"input {name!r} is {short_repr(leaf)}", remedy="give an integer of at most 64 bits") from None


def _numpy_name(dtype: DType) -> str:
    if dtype is DType.bfloat16:
        return "bfloat16 (of ml_dtypes, or its bits: array.view(numpy.uint16))"
    return dtype.name
