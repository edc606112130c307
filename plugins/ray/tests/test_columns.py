"""Columns as inputs: which are views of their memory, which types convert, and rows that do not fit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from delegate_ray.runtime.columns import ANY, Cell, Rows, arrow_array, read, read_joined, write, write_numpy

from delegate.kernels.half_precision import to_bfloat16
from delegate.program.dtypes import DType
from delegate.testing import assert_same

X = np.arange(12, dtype=np.float32).reshape(3, 4)
FLAT = pa.array(X.reshape(-1))
FIXED = pa.FixedSizeListArray.from_arrays(FLAT, 4)
LISTS = pa.ListArray.from_arrays(pa.array([0, 4, 8, 12], pa.int32()), FLAT)


@pytest.mark.parametrize(
    "column",
    [X, FIXED, LISTS, FIXED[0:3], pa.chunked_array([LISTS]), pa.FixedShapeTensorArray.from_numpy_ndarray(X)],
    ids=lambda column: type(column).__name__,
)
def test_views(column: Any) -> None:
    """No cell is copied, also for slices, and for cells that the program takes in another shape."""
    for shape in ((4,), (2, 2)) if not isinstance(column, pa.FixedShapeTensorArray) else ((4,),):
        rows, errors = read(column, Cell("x", DType.float32, shape))
        assert rows.dense is not None
        assert not errors
        assert_same(rows.dense, X.reshape(3, *shape))
        places = {np.asarray(FLAT).ctypes.data, X.ctypes.data}
        assert rows.dense.ctypes.data in places


def test_slices_are_views() -> None:
    for column in (FIXED[1:], LISTS[1:]):
        rows, _ = read(column, Cell("x", DType.float32, (4,)))
        assert rows.dense is not None
        assert_same(rows.dense, X[1:])
        assert rows.dense.ctypes.data == np.asarray(FLAT)[4:].ctypes.data


OTHER = "the column has the type {}, and the program takes int64"
I8 = np.array([1, 2, 127], np.int8)


@pytest.mark.parametrize(
    ("column", "dtype", "expected"),
    [
        (I8.astype(np.int64), DType.int8, I8),
        (I8, DType.int64, I8.astype(np.int64)),
        (I8, DType.float16, I8.astype(np.float16)),
        (I8, DType.bfloat16, to_bfloat16(I8.astype(np.float32))),
        (I8.astype(">i4"), DType.int32, I8.astype(np.int32)),
        (np.array([1.5, 2, 3]), DType.float32, np.array([1.5, 2, 3], np.float32)),
        (pa.array(["1", "2", "127"]), DType.int8, I8),
        (pa.array([True, False, True]), DType.bool, np.array([True, False, True])),
        (["1.5", 2, np.float64(3)], DType.float32, np.array([1.5, 2, 3], np.float32)),
        (np.array([1, 2, 300]), DType.int8, {2: "300 is out of the range of int8"}),
        (np.array([1.0, 2, 3]), DType.int8, dict.fromkeys(range(3), "the cell is float64, and the program takes int8")),
        (pa.array([1, None, 3]), DType.int64, {1: "the cell is null"}),
        (["1", "x", "3"], DType.int64, {1: "'x' is not a number of type int64"}),
        (pa.array(["1", "2.5", "3"]), DType.int64, {1: "'2.5' is not a number of type int64"}),
        (pa.array(["1", "0x10", "3"]), DType.int64, {1: "'0x10' is not a number of type int64"}),
        (["1", "0XFF", "3"], DType.int8, {1: "'0XFF' is not a number of type int8"}),
        ([True, 1, "true"], DType.bool, {1: "the cell is int64, and the program takes bool"}),
        ([1, ValueError("no line"), 3], DType.int64, {1: "no line"}),
        (np.array([1, 1e300, np.inf]), DType.float32, {1: "1e+300 is out of the range of float32"}),
        (np.array([1, 70000, 3]), DType.float16, {1: "70000 is out of the range of float16"}),
        (np.array([1, 1e39, 3]), DType.bfloat16, {1: "1e+39 is out of the range of float32"}),
        (np.array([1, 3.4e38, np.inf]), DType.bfloat16, {1: "3.3999999521443642e+38 is out of the range of bfloat16"}),
        (pa.array(["1", "1e39", "-inf"]), DType.float32, {1: "'1e39' is out of the range of float32"}),
        ([1, 2**64, 3], DType.int64, {1: f"{2**64} is out of the range of int64"}),
        ([1, [2], 3], DType.float32, np.array([1, 2, 3], np.float32)),
        ([1, {"a": 1}, 3], DType.float32, {1: "the cell has a value of the type dict"}),
        (pa.array([" 1", "2 ", "127"]), DType.int8, I8),
        (pa.array([1, 2, 127]).dictionary_encode(), DType.int8, I8),
        (pa.array(["1", "2", "1"]).dictionary_encode(), DType.int8, np.array([1, 2, 1], np.int8)),
        (pa.array([Decimal("1.5"), Decimal("2"), Decimal("3")]), DType.float32, np.array([1.5, 2, 3], np.float32)),
        (pa.array([1, 2, 3], pa.timestamp("s")), DType.int64, dict.fromkeys(range(3), OTHER.format("timestamp[s]"))),
        (pa.array([{"a": 1}] * 3), DType.int64, dict.fromkeys(range(3), OTHER.format("struct<a: int64>"))),
    ],
    ids=str,
)
def test_types(column: Any, dtype: DType, expected: Any) -> None:
    rows, errors = read(column, Cell("x", dtype, ()))
    if isinstance(expected, dict):
        assert errors == {row: f"input 'x': {text}" for row, text in expected.items()}
        assert [cell is None for cell in rows.cells] == [row in expected for row in range(3)]
    else:
        assert not errors
        array = rows.dense if rows.dense is not None else np.stack([c for c in rows.cells if c is not None])
        assert_same(array, expected)


PAIR = np.array([1, 2], np.float32)


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_view(pa.float32()), pa.list_(pa.float16(), 2)],
    ids=str,
)
def test_lists_with_nulls(kind: pa.DataType) -> None:
    """A null in a list is not a number, also if its memory has one."""
    column = pa.array([[1, 2], None, [1, None], [2, 1]], kind)
    rows, errors = read(column[:3], Cell("x", DType.float32, (2,)))
    assert errors == {1: "input 'x': the cell is null", 2: "input 'x': the cell has nulls"}
    assert_same(rows.cells[0], PAIR)


NUMBERS = np.arange(18, dtype=np.int32).reshape(3, 6) % 5
FEW = np.array([1.5, 2, 1.5], np.float32)
DECIMALS = [Decimal("1.5"), Decimal("2"), Decimal("1.5")]


def tensors(values: np.ndarray, shape: tuple[int, ...], order: list[int] | None = None) -> pa.Array:
    """Return rows of six numbers as an Arrow column of tensors."""
    kind = pa.from_numpy_dtype(values.dtype)
    storage = pa.array(values.tolist(), pa.list_(kind, 6))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(kind, shape, permutation=order), storage)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array(DECIMALS), FEW),
        (pa.array([[value] for value in DECIMALS]), FEW[:, None]),
        (pa.array(FEW.tolist(), pa.float16()), FEW),
        (pa.array(FEW.tolist()).dictionary_encode(), FEW),
        (pa.array(["1.5", "2", "1.5"]), FEW),
        (pa.array([True, False, True]), np.array([True, False, True])),
        (pa.array(NUMBERS.tolist(), pa.list_view(pa.int32())), NUMBERS),
        (pa.array(NUMBERS.tolist(), pa.large_list(pa.int8())), NUMBERS),
        (tensors(NUMBERS, (3, 2)), NUMBERS.reshape(3, 3, 2)),
        (tensors(NUMBERS > 2, (2, 3)), NUMBERS.reshape(3, 2, 3) > 2),
        (tensors(NUMBERS, (2, 3), [1, 0]), NUMBERS.reshape(3, 2, 3).transpose(0, 2, 1)),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_null_changes_no_other_row(column: pa.Array, values: np.ndarray) -> None:
    cell = Cell("x", DType[values.dtype.name], values.shape[1:])
    rows, errors = read(column, cell)
    assert not errors
    assert_same(np.stack([c for c in rows.cells if c is not None]) if rows.dense is None else rows.dense, values)
    is_tensor = isinstance(column, pa.ExtensionArray)
    null = pa.nulls(1, column.storage.type if is_tensor else column.type)
    null = pa.ExtensionArray.from_storage(column.type, null) if is_tensor else null
    rows, errors = read(pa.concat_arrays([column[:1], null, column[1:]]), cell)
    assert errors == {1: "input 'x': the cell is null"}
    assert_same(np.stack([c for c in rows.cells if c is not None]), values)


def test_lists_of_other_values() -> None:
    cases = {
        "the cell has text": ["1", "2"],
        "the cell has nulls": [1, None],
        "the cell has lists of different lengths": [[1], [1, 2]],
        "the cell has both numbers and booleans": [1.5, True],
        f"{2**64} is out of the range of float32": [1, 2**64],
    }
    _, errors = read(list(cases.values()), Cell("x", DType.float32, (2,)))
    assert [errors[row] for row in range(len(cases))] == [f"input 'x': {text}" for text in cases]
    nested = [[[1, 2], [3, True]], [[True, False], [True, True]], [[1, 0], [1, 1]]]
    for dtype, good in ((DType.int64, 2), (DType.bool, 1)):
        rows, errors = read(nested, Cell("x", dtype, (2, 2)))
        assert set(errors) == {0, 1, 2} - {good}
        assert_same(rows.cells[good], np.array(nested[good], dtype.numpy))
    dates = pa.array([[1, 2]], pa.list_(pa.date32()))
    _, errors = read(dates, Cell("x", DType.float32, (2,)))
    assert "the column has the type list<" in errors[0]


@pytest.mark.parametrize("lengths", [(0, 0, 0), (0, 1, 2)], ids=str)
def test_cells_without_elements(lengths: tuple[int, ...]) -> None:
    rows, errors = read(pa.array([[1.0] * n for n in lengths]), Cell("x", DType.float32, (ANY,)))
    assert not errors
    cells = rows.cells if rows.dense is None else rows.dense
    assert tuple(len(cell) for cell in cells if cell is not None) == lengths


def test_joined_columns() -> None:
    cell = Cell("x", DType.float32, (2,))
    rows, errors = read_joined([np.array([1, 2]), pa.array(["3", "4"])], cell, ("a", "b"))
    assert not errors
    assert rows.dense is not None
    assert_same(rows.dense, np.array([[1, 3], [2, 4]], np.float32))
    rows, errors = read_joined([np.array([1, 2]), pa.array([None, 4])], cell, ("a", "b"))
    assert errors == {0: "input 'x', column 'b': the cell is null"}
    assert rows.cells[0] is None
    assert_same(rows.cells[1], np.array([2, 4], np.float32))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (ANY,), (ANY, 2)], ids=str)
@pytest.mark.parametrize("dtype", [DType.float32, DType.int8, DType.bool, DType.float16, DType.bfloat16, DType.uint64])
@pytest.mark.parametrize("has_errors", [False, True])
def test_results(shape: tuple[int, ...], dtype: DType, has_errors: bool) -> None:
    sizes = [4 if size == ANY else size for size in shape]
    dense = np.ones((3, *sizes), dtype.numpy)
    expected = dense.astype(np.float32) if dtype is DType.bfloat16 else dense
    if dtype is DType.bfloat16:
        dense = to_bfloat16(expected)
    cell = Cell("y", dtype, shape)
    rows = Rows(None, [dense[0], None, dense[2]]) if has_errors else Rows(dense)
    column = write(rows, cell)
    assert column.type == cell.type
    assert [value.is_valid for value in column] == [True, not has_errors, True]
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    assert storage[2].as_py() == (
        expected[2].reshape(-1).tolist() if cell.is_tensor and shape else expected[2].tolist()
    )
    numbers = write_numpy(rows, cell)
    assert len(numbers) == 3 - has_errors
    assert_same(np.stack(list(numbers)), expected[: 3 - has_errors])


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("count", [0, 3, 20])
def test_arrow_arrays_without_pandas(name: str, count: int) -> None:
    """They equal the results of pyarrow's own functions, which import pandas. So do arrays with slices of lists."""
    values = (np.arange(2 * count) % 3).astype(name)[::2]
    missing = np.arange(count) % 4 == 1
    assert arrow_array(values).equals(pa.array(values))
    assert arrow_array(values, missing).equals(pa.array(values, mask=missing))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(values, 2)), 2)[count // 3 :]
    rows, errors = read(lists, Cell("x", DType[name], (2,)))
    assert rows.dense is not None
    assert not errors
    assert_same(rows.dense, np.repeat(values, 2).reshape(-1, 2)[count // 3 :])
