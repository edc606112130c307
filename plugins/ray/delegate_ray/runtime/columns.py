"""Columns of data as arrays of inputs, and results as Arrow columns.

A column of equal cells becomes one array over its memory, while other columns are read cell by cell. A cell that does
not fit is an error of its row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delegate.kernels.half_precision import from_bfloat16, to_bfloat16
from delegate.program.dtypes import DType
from delegate.runtime.backend import Array

_HEXADECIMAL = "x"  # Arrow reads 0xFF as 255, and as -1 for int8
_LONGEST_NUMBER = 1000  # bytes of a text
ANY = -1  # a size of a cell that may differ between rows
_KINDS = {
    "f": "fiu",
    "i": "iu",
    "u": "iu",
    "b": "b",
    "c": "c",
}  # of an input -> of the columns that it can be read from


@dataclass(frozen=True, slots=True)
class Cell:
    """The form of one row of an input or an output.

    Args:
        name: The name of the input or output.
        dtype: The dtype of its elements.
        shape: its sizes; ANY if a size may differ between rows.
        column: the column that an input reads, for messages; empty: the column of its name.
        most: the most elements of a row; None: no limit is known.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    column: str = ""
    most: int | None = None

    @property
    def where(self) -> str:
        """The input, and its column if that has another name."""
        return f"input {self.name!r}" + (f", column {self.column!r}" if self.column not in ("", self.name) else "")

    @property
    def is_fixed(self) -> bool:
        """Return True if all rows have the same sizes."""
        return ANY not in self.shape

    @property
    def size(self) -> int:
        """The number of elements in a row, if all rows have the same sizes."""
        return math.prod(map(int, self.shape))

    @property
    def is_tensor(self) -> bool:
        """Return True if a column of such cells is an Arrow column of tensors with one shape."""
        return self.is_fixed and self.size > 0

    @property
    def stored(self) -> pa.DataType:
        """The Arrow type of its elements; bfloat16 is stored as float32."""
        return pa.from_numpy_dtype(np.dtype("float32") if self.dtype is DType.bfloat16 else self.dtype.numpy)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type for a column of such cells."""
        if not self.shape:
            return self.stored
        if self.is_tensor:
            return pa.fixed_shape_tensor(self.stored, self.shape)
        nested = self.stored
        for _ in self.shape:
            nested = pa.list_(nested)
        return nested


@dataclass(frozen=True, slots=True)
class Rows:
    """The cells of some rows.

    Args:
        dense: one array of all cells; None if they have no common shape, or some are missing.
        cells: an array for each row, None for a row with an error; used if `dense` is None.
    """

    dense: Array | None
    cells: Sequence[Array | None] = ()


class _Misfit(ValueError):
    """A value that does not fit an input."""


def read(column: Any, cell: Cell) -> tuple[Rows, dict[int, str]]:
    """Return the cells of a column, and the errors of rows that do not fit.

    Args:
        column: a NumPy array, an Arrow array, or a list of cells.
        cell: the form of an input.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.DictionaryArray):
        column = _decode(column)
    if isinstance(column, pa.Array) and not has_numbers(column.type):
        error = f"{cell.where}: the column has the type {column.type}, and the program takes {cell.dtype.name}"
        return Rows(None, [None] * len(column)), dict.fromkeys(range(len(column)), error)
    array = _dense(column, cell)
    if array is not None:
        try:
            return Rows(_fit(array, cell, array.shape[1:])), {}
        except _Misfit:
            column = array  # each row is checked by itself
    cells: list[Array | None] = []
    errors: dict[int, str] = {}
    for row in range(len(column)):
        try:
            cells.append(_read_cell(column[row], cell))
        except (ValueError, RecursionError) as error:
            cells.append(None)
            why = "the cell has lists that are too deeply nested" if isinstance(error, RecursionError) else error
            errors[row] = f"{cell.where}: {why}"
    return Rows(None, cells), errors


def read_joined(columns: Sequence[Any], cell: Cell, names: Sequence[str]) -> tuple[Rows, dict[int, str]]:
    """Return the cells of an input whose elements are columns of numbers, and the errors of rows; see `read`."""
    elements = [Cell(cell.name, cell.dtype, (), name) for name in names]
    parts = list(map(read, columns, elements))
    errors = {row: text for _, found in reversed(parts) for row, text in found.items()}
    cells: list[Any] = [rows.cells if rows.dense is None else rows.dense for rows, _ in parts]
    if not errors:
        return Rows(np.stack([np.asarray(c) for c in cells], axis=1).view()), {}
    joined = [None if row in errors else np.stack([c[row] for c in cells]).view() for row in range(len(columns[0]))]
    return Rows(None, joined), errors


def write(rows: Rows, cell: Cell) -> pa.Array:
    """Return results as an Arrow column; rows with errors are null."""
    dense, missing = rows.dense, None
    if dense is None and not cell.is_tensor:
        return pa.array([None if c is None else _store(c, cell).tolist() for c in rows.cells], cell.type)
    if dense is None:
        absent = np.zeros(cell.shape, cell.dtype.numpy)
        dense = np.stack([absent if c is None else c for c in rows.cells]) if rows.cells else absent[None][:0]
        missing = np.array([c is None for c in rows.cells], bool)
    elif not cell.is_tensor:
        return pa.array(_store(dense, cell).tolist(), cell.type)
    values = _store(dense, cell)
    if not cell.shape:
        return arrow_array(values, missing)
    flat = arrow_array(np.ascontiguousarray(values).reshape(-1))
    mask = None if missing is None else arrow_array(missing)
    storage = pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(cell.stored, cell.size), mask=mask)
    return pa.ExtensionArray.from_storage(cell.type, storage)


def as_lists(column: pa.Array) -> pa.Array:
    """Return a column of tensors as one of nested lists, which may be null in all tools; other columns as they are."""
    if not isinstance(column, pa.FixedShapeTensorArray):
        return column
    array = column.storage.values
    *inner, outer = reversed(column.type.shape)
    for size in inner:
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return pa.FixedSizeListArray.from_arrays(array, outer, mask=column.is_null())


def arrow_array(values: Array, missing: Array | None = None) -> pa.Array:
    """Return numbers as an Arrow array over their memory, because `pa.array` would import pandas, which takes 20 MB.

    Args:
        values: Values of one dimension.
        missing: True where the result is null.
    """
    kind = pa.from_numpy_dtype(values.dtype)
    data = np.packbits(values, bitorder="little") if kind == pa.bool_() else np.ascontiguousarray(values)
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(data)])


def write_numpy(rows: Rows, cell: Cell) -> Array:
    """Return results as a NumPy array without the rows with errors; of type object if their shapes differ."""
    if rows.dense is not None:
        return _store(rows.dense, cell)
    cells = [_store(c, cell) for c in rows.cells if c is not None]
    if cell.is_fixed:
        return np.stack(cells) if cells else np.empty((0, *cell.shape), cell.stored.to_pandas_dtype())
    array = np.empty(len(cells), object)
    array[:] = cells
    return array


def _store(array: Array, cell: Cell) -> Array:
    return from_bfloat16(array) if cell.dtype is DType.bfloat16 else array


def _dense(column: Any, cell: Cell) -> Array | None:
    """Return a column as one array over its memory, None if its cells differ or some are missing."""
    array = None
    if isinstance(column, np.ndarray):
        array = column
    elif not isinstance(column, pa.Array) or column.null_count:
        return None
    elif isinstance(column, pa.FixedShapeTensorArray):
        array = _flat_lists(column.storage)
        array = None if array is None else _as_tensors(array, column.type)
    elif isinstance(column, pa.ExtensionArray):  # such as Ray's tensors
        array = column.to_numpy(zero_copy_only=False)
    elif is_text(column.type):
        if pc.any(pc.match_substring(column, _HEXADECIMAL, ignore_case=True)).as_py():
            return None
        with suppress(pa.ArrowInvalid):
            array = _numbers(pc.cast(column, cell.stored))
        if array is not None and np.isinf(array).any():
            return None  # a number that is too large becomes infinite, too
    else:
        array = _flat_lists(column)
    return None if array is None or array.dtype == object else array


def _flat_lists(column: Any) -> Array | None:
    """Return a column of numbers or nested lists as an array, None if lengths differ or numbers are missing."""
    sizes = [len(column)]
    while is_list(column.type):
        lengths = np.diff(_numbers(column.offsets)) if hasattr(column, "offsets") else column.type.list_size
        if np.ndim(lengths) and (not len(lengths) or (lengths != lengths[0]).any()):
            return None
        size, rows = int(np.ravel(lengths)[0]), len(column)
        column = column.flatten()
        if len(column) != rows * size:
            return None
        sizes.append(size)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not is_number or column.null_count:
        return None
    return _numbers(column).reshape(sizes)


def _as_tensors(rows: Array, kind: pa.FixedShapeTensorType) -> Array:
    """Return rows of numbers as tensors. Arrow's own functions take no bool, and a scalar's mixes permuted sizes up."""
    array = rows.reshape(len(rows), *kind.shape)
    return array if kind.permutation is None else array.transpose(0, *(1 + axis for axis in kind.permutation))


def _numbers(column: pa.Array) -> Array:
    """Return an Arrow array of numbers without nulls as an array over its memory. `to_numpy` would import pandas."""
    kind, data = np.dtype(column.type.to_pandas_dtype()), column.buffers()[1]
    part = slice(column.offset, column.offset + len(column))
    if data is None:
        return np.empty(0, kind)
    if kind == np.bool_:
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[part].view(np.bool_)
    return np.frombuffer(data, kind, part.stop)[part]


def is_list(kind: pa.DataType) -> bool:
    """Return True for an Arrow type of lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def leaf_type(kind: pa.DataType) -> pa.DataType:
    """Return the element type of nested lists, or another type as it is."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def _decode(column: pa.DictionaryArray) -> pa.Array:
    """Return a column without its dictionary, whose texts may be long and many: those that are not numbers are cut."""
    values = column.dictionary
    if is_text(values.type):
        is_long = pc.greater(pc.binary_length(values), _LONGEST_NUMBER)
        values = pc.if_else(is_long, pa.scalar(f"a text of more than {_LONGEST_NUMBER} bytes", values.type), values)
        column = pa.DictionaryArray.from_arrays(column.indices, values)
    return column.dictionary_decode()


def is_text(kind: pa.DataType) -> bool:
    """Return True for an Arrow type of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def has_numbers(kind: pa.DataType) -> bool:
    """Return True if a column of an Arrow type can have numbers in some cells, as numbers, as lists or as text."""
    while is_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        return has_numbers(kind.value_type)
    return not pa.types.is_nested(kind) and not pa.types.is_temporal(kind) and not _is_binary(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _read_cell(value: Any, cell: Cell) -> Array:
    if isinstance(value, pa.Scalar):
        value = _from_scalar(value)
    if isinstance(value, Exception):
        raise _Misfit(str(value))
    if value is None:
        raise _Misfit("the cell is null")
    if isinstance(value, str):
        value = _parse(value, cell)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind in "OUS":
        raise _Misfit(_why_no_number(value, cell.dtype) or "the cell has lists of different lengths")
    if array.dtype.kind in "iufc" and isinstance(value, list) and _has_truth_values(value):
        raise _Misfit("the cell has both numbers and booleans")
    return _fit(array, cell, array.shape)


def _from_scalar(scalar: pa.Scalar) -> Any:
    """Return the value of an Arrow cell. Lists of equal lengths become arrays over the memory of the column."""
    if isinstance(scalar, pa.FixedShapeTensorScalar) and scalar.is_valid:
        array = _flat_lists(scalar.value.values)
        return scalar.value.as_py() if array is None else _as_tensors(array[None], scalar.type)[0]
    if isinstance(scalar, pa.ExtensionScalar) and scalar.is_valid and hasattr(scalar, "to_numpy"):
        return scalar.to_numpy()
    if pa.types.is_decimal(scalar.type):
        return scalar.cast(pa.float64()).as_py()
    array = _flat_lists(scalar.values) if isinstance(scalar, pa.ListScalar) and scalar.is_valid else None
    return scalar.as_py() if array is None else array


def _why_no_number(value: Any, dtype: DType) -> str | None:
    """Return the reason why a value, or the first such value in lists, is not a number; None if all are numbers."""
    if isinstance(value, list | tuple | np.ndarray):
        return next((reason for item in value if (reason := _why_no_number(item, dtype)) is not None), None)
    if value is None:
        return "the cell has nulls"
    if isinstance(value, str | bytes):
        return "the cell has text"
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"{value} is out of the range of {dtype.name}"
    if isinstance(value, int | float | np.number | np.bool_):
        return None
    return f"the cell has a value of the type {type(value).__name__}"


def _has_truth_values(items: list[Any]) -> bool:
    """Return True if nested lists have True or False, which NumPy would take for numbers among numbers."""
    kinds = set(map(type, items))
    return bool in kinds or (list in kinds and any(map(_has_truth_values, items)))


def _parse(text: str, cell: Cell) -> Any:
    try:
        if _HEXADECIMAL in text.lower():
            raise ValueError
        value = pa.scalar(text.strip()).cast(cell.stored).as_py()
    except ValueError:
        raise _Misfit(f"{text[:40]!r} is not a number of type {cell.dtype.name}") from None
    if np.isinf(value) and "inf" not in text.lower():
        raise _Misfit(f"{text[:40]!r} is out of the range of {cell.dtype.name}")
    return value


def _fit(array: Array, cell: Cell, shape: tuple[int, ...]) -> Array:
    """Return an array with the type of a cell and, in its last dimensions, its shape; raises _Misfit.

    Args:
        array: cells.
        cell: the form of the input.
        shape: the sizes of one cell of the array.
    """
    first = array.shape[: array.ndim - len(shape)]
    if len(shape) != len(cell.shape) or any(
        size not in (ANY, own) for size, own in zip(cell.shape, shape, strict=True)
    ):
        if not (cell.is_fixed and len(shape) == 1 and shape[0] == cell.size):
            sizes = ", ".join("any" if size == ANY else str(size) for size in cell.shape)
            raise _Misfit(f"the cell has the shape {list(shape)}, and the program takes [{sizes}] for each row")
        array = array.reshape((*first, *cell.shape))
    return _convert(array, cell.dtype)


def _convert(array: Array, dtype: DType) -> Array:
    """Return an array with another type of elements, if that keeps the values or rounds floats; raises _Misfit."""
    target = dtype.numpy
    kind = "f" if dtype is DType.bfloat16 else target.kind
    if array.dtype.kind not in _KINDS[kind] and array.size:
        raise _Misfit(f"the cell is {array.dtype}, and the program takes {dtype.name}")
    if dtype is DType.bfloat16:
        wide = _convert(array, DType.float32)
        narrow = to_bfloat16(wide)
        is_over = np.isinf(from_bfloat16(narrow)) & ~np.isinf(wide)
        if is_over.any():
            raise _Misfit(f"{wide[is_over].flat[0]} is out of the range of bfloat16")
        return narrow.view()
    if array.dtype == target:
        return array
    if kind in "iu" and array.size:
        limits = np.iinfo(target)
        least, most = int(array.min()), int(array.max())
        if least < limits.min or most > limits.max:
            raise _Misfit(f"{least if least < limits.min else most} is out of the range of {dtype.name}")
    with np.errstate(over="ignore"):
        converted = array.astype(target)
    if kind in "fc" and not np.can_cast(array.dtype, target) and array.size and not _is_in_range(array, converted):
        is_over = np.isinf(converted) & ~np.isinf(array)
        if is_over.any():
            raise _Misfit(f"{array[is_over].flat[0]} is out of the range of {dtype.name}")
    return converted


def _is_in_range(array: Array, converted: Array) -> bool:
    """Return True if no number has become infinite; False also if there was an infinite one, or NaN."""
    if converted.dtype != np.float16:
        return bool(np.isfinite(converted.max()) and np.isfinite(converted.min()))
    limit = np.finfo(np.float16).max  # NumPy finds the largest of float16 slowly
    return bool(array.max() <= limit and array.min() >= -limit)
