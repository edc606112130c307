"""Checks the caller's inputs, and reads the symbolic sizes off their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from delegate.errors import InputError
from delegate.program.dtypes import DType
from delegate.program.expr import Expr
from delegate.program.model import Input, Method, Value
from delegate.runtime.backend import Array

_ARRAY = np.ndarray


class InputChecker:
    """Makes row-major arrays of the right dtype and shape out of what the caller gives, or says what is wrong."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._values = [method.values[i.value] if i.value >= 0 else None for i in method.inputs]
        self._static = all(v is None or v.is_static for v in self._values)
        self._exact = [
            (v.dtype.numpy, v.shape) if v is not None and v.is_static else (None, None) for v in self._values
        ]

    def arrays(self, leaves: Sequence[Any]) -> Sequence[Array | None]:
        """An array per input; None for a literal.

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
                return leaves  # nothing has to be done or said, as in most calls
        inputs = self._method.inputs
        if len(leaves) != len(inputs):
            names = ", ".join(i.name for i in inputs[len(leaves) :]) or "none of them"
            raise InputError(
                f"method {self._method.name} takes {len(inputs)} inputs, not {len(leaves)}", remedy=f"missing: {names}"
            )
        return [self._array(*row) for row in zip(inputs, self._values, leaves, strict=True)]

    def symbols(self, arrays: Sequence[Array | None]) -> tuple[int, ...]:
        """The value of each symbol of the method for these inputs, checked against the ranges and all other sizes."""
        method = self._method
        found: list[int] = []
        for symbol in method.symbols:
            array = arrays[symbol.input]
            assert array is not None
            size = array.shape[symbol.dim]
            if size < symbol.minimum or (symbol.maximum is not None and size > symbol.maximum):
                allowed = (
                    f"{symbol.minimum} to {symbol.maximum}" if symbol.maximum is not None else f">= {symbol.minimum}"
                )
                raise InputError(
                    f"input {method.inputs[symbol.input].name!r} has size {size} in dimension {symbol.dim}",
                    remedy=f"{symbol.name} must be {allowed}",
                )
            found.append(size)
        if not self._static:
            self._check_expressions(arrays, dict(enumerate(found)))
        return tuple(found)

    def _array(self, given: Input, value: Value | None, leaf: Any) -> Array | None:
        if value is None:
            if type(leaf) is not type(given.literal) or leaf != given.literal:
                raise InputError(
                    f"input {given.name!r} is {leaf!r}",
                    remedy=f"export fixed it to {given.literal!r}; export again for another value",
                )
            return None
        array = _as_array(leaf, value.dtype, given.name)
        if array.dtype != value.dtype.numpy:
            raise InputError(
                f"input {given.name!r} is {array.dtype}, but the program takes {_numpy_name(value.dtype)}",
                remedy=f"convert it with .astype({str(value.dtype.numpy)!r})",
            )
        if len(array.shape) != len(value.shape) or any(
            size != wanted
            for size, wanted in zip(array.shape, value.shape, strict=True)
            if not isinstance(wanted, Expr)
        ):
            raise InputError(
                f"input {given.name!r} has the shape {list(array.shape)}, but the program takes {self._shape(value)}",
                remedy="give that shape, or export with dynamic shapes",
            )
        return array if array.flags.c_contiguous else array.copy(order="C")

    def _shape(self, value: Value) -> str:
        names = {i: s.name for i, s in enumerate(self._method.symbols)}
        return "[" + ", ".join(_dim_text(d, names) for d in value.shape) + "]"

    def _check_expressions(self, arrays: Sequence[Array | None], symbols: dict[int, int]) -> None:
        for given, value, array in zip(self._method.inputs, self._values, arrays, strict=True):
            if value is None or array is None:
                continue
            for dim, wanted in enumerate(value.shape):
                if isinstance(wanted, Expr) and (size := wanted.evaluate(symbols)) != array.shape[dim]:
                    names = {i: s.name for i, s in enumerate(self._method.symbols)}
                    raise InputError(
                        f"input {given.name!r} has size {array.shape[dim]} in dimension {dim}",
                        remedy=f"it must be {_dim_text(wanted, names)}, which is {size} for these inputs",
                    )


def _as_array(leaf: Any, dtype: DType, name: str) -> Array:
    if isinstance(leaf, np.ndarray):
        return leaf
    if hasattr(leaf, "__dlpack__"):
        try:
            return np.from_dlpack(leaf)
        except (BufferError, RuntimeError, TypeError) as error:
            raise InputError(f"input {name!r} cannot be read as an array: {error}") from error
    if isinstance(leaf, bool | int | float | complex | list | tuple | np.generic):
        try:
            return np.asarray(leaf, dtype=None if isinstance(leaf, np.generic) else dtype.numpy)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"input {name!r} cannot be made a tensor of {dtype.name}: {error}") from error
    raise InputError(f"input {name!r} is a {type(leaf).__name__}", remedy=f"give an array of {dtype.name}")


def _numpy_name(dtype: DType) -> str:
    return "bfloat16 (its bits as uint16)" if dtype is DType.bfloat16 else dtype.name


def _dim_text(dim: int | Expr, names: dict[int, str]) -> str:
    text = str(dim)
    for index in sorted(names, reverse=True):
        text = text.replace(f"s{index}", names[index])
    return text
