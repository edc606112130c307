"""`Predictor` on batches as Ray Data has them: views, read-only arrays, columns, bad rows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from delegate_ray import Predictor
from delegate_ray.runtime import rows
from delegate_ray.runtime.columns import Cell, Rows, as_lists, write

from delegate.errors import ConfigError, InputError
from delegate.program.dtypes import DType
from delegate.testing import assert_same
from tests.support.lowering import assert_runs

from .conftest import ROWS, Data, tensor


def read_only(x: np.ndarray) -> np.ndarray:
    view = x[:]
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("name", ["net", "static"])
def test_both_kinds_of_batches(data: Data, name: str) -> None:
    """Their results are batches of the same kind."""
    predictor = Predictor(data.programs[name], keep=["id"], threads=1)
    with torch.no_grad():
        expected = torch.cat([data.modules[name](torch.from_numpy(row[None])) for row in data.x])
    arrays = predictor({"x": read_only(data.x), "id": np.arange(ROWS), "other": np.arange(ROWS)})
    assert list(arrays) == ["id", "output"]
    assert_same(arrays["output"], expected)
    table = predictor(pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(data.x), "id": range(ROWS)}))
    assert table.column_names == ["id", "output"]
    assert table["id"].to_pylist() == arrays["id"].tolist() == list(range(ROWS))
    assert_same(tensor(table, "output"), expected)


def test_programs_run_on_their_backend(data: Data) -> None:
    predictor = Predictor(data.programs["net"], threads=1)
    (spec,) = predictor._runner.program.program.delegates
    assert spec.compile_specs["threads"] == 1
    assert_runs(predictor._runner.program, "xnnpack")


def test_a_column_of_the_only_input(data: Data) -> None:
    predictor = Predictor(data.programs["net"], "features", results={"output": "logits"}, batch=7)
    assert list(predictor({"features": data.x})) == ["logits"]


def test_half_precision(data: Data) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    result = Predictor(data.programs["half"])({"x": x})["output"]
    assert result.dtype == np.float32
    assert_same(result, 2 * x)


def test_calls_take_many_rows(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the program and `batch` allow, as views of the batch."""
    for name, most, expected in (
        ("net", 1024, [16, 16, 16, 2]),
        ("net", 15, [15, 15, 15, 5]),
        ("static", 8, [1] * 50),
    ):
        predictor = Predictor(data.programs[name], batch=most)
        method, calls = predictor._runner._method, []

        def run(leaves: Any, original: Any = method.run, calls: list[Any] = calls) -> Any:
            calls.append(leaves[0])
            return original(leaves)

        monkeypatch.setattr(method, "run", run)
        predictor({"x": data.x})
        assert [len(x) for x in calls] == expected
        assert all(np.shares_memory(x, data.x) for x in calls)


@pytest.mark.parametrize(("elements", "expected"), [(1, 2), (12, 3), (1 << 19, 16)])
def test_rows_of_calls_by_default(data: Data, monkeypatch: pytest.MonkeyPatch, elements: int, expected: int) -> None:
    """As many as a limit of elements allows: a row has 4 elements, and the program takes 16 rows."""
    monkeypatch.setattr(rows, "_ELEMENTS", elements)
    runner = Predictor(data.programs["net"], threads=1)._runner
    sizes, run = [], runner._method.run
    monkeypatch.setattr(runner._method, "run", lambda leaves: sizes.append(len(leaves[0])) or run(leaves))
    runner.run({"x": data.x}, ROWS)
    assert max(sizes) == expected


def test_bad_rows(data: Data) -> None:
    ids, scale = np.array([0, 99, 2]), np.ones(3)
    batch: dict[str, Any] = {"ids": ids, "scale": scale}
    with pytest.raises(InputError, match="row 1 of a batch"):
        Predictor(data.programs["lookup"])(batch)
    dropped = Predictor(data.programs["lookup"], keep=["ids"], on_bad="drop")
    assert dropped(batch)["ids"].tolist() == dropped(pa.table(batch))["ids"].to_pylist() == [0, 2]
    assert dropped(batch)["rows"].shape == (2, 4)
    column = Predictor(data.programs["lookup"], on_bad="column")
    table = column(pa.table(batch))
    assert [bool(text) for text in table["error"].to_pylist()] == [False, True, False]
    assert table["sum"].is_null().to_pylist() == [False, True, False]
    with pytest.raises(ConfigError, match='pass batch_format="pyarrow"'):
        column(batch)


def test_empty_batches(data: Data) -> None:
    result = Predictor(data.programs["net"])({"x": data.x[:0]})
    assert result["output"].shape == (0, 3)
    table = Predictor(data.programs["net"])(pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(data.x)})[:0])
    assert table.num_rows == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": {"y": "x"}}, "there is no input 'y'"),
        ({"results": {"y": "x"}}, "there is no output 'y'"),
        ({"results": {}}, "no output is requested"),
        ({"keep": ["output"]}, "two columns 'output'"),
        ({"method": "f"}, "there is no method 'f'"),
        ({"columns": {"x": "absent"}}, "there is no column 'absent' for input 'x'"),
        ({"keep": ["absent"]}, "there is no column 'absent' to keep"),
        ({"on_bad": "ignore"}, "'ignore' is not a policy"),
        ({"keep": "id"}, "keep is the text 'id'"),
        ({"results": ["output"]}, "results is a list"),
        ({"batch": 0}, "0 is no number of rows"),
        ({"path": "file:///shared/net.dlg"}, "a program is a file, not a URL"),
    ],
)
def test_errors(data: Data, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Predictor(**{"path": data.programs["net"], **arguments})({"x": data.x})


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (pa.record_batch({"x": [1.0]}), "a batch is a RecordBatch, and must be a dict of arrays or an Arrow table"),
        ([{"x": [1.0]}], "a batch is a list"),
        (pa.table([[1.0], [2.0]], names=["x", "x"]), "there are two columns 'x'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_wrong_batches(data: Data, batch: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Predictor(data.programs["net"])(batch)


def test_a_copy_loads_the_file_again(data: Data) -> None:
    """Ray pickles an object in place of a class."""
    predictor = Predictor(data.programs["net"], {"x": "y"}, results={"output": "z"}, keep=["id"], threads=1)
    copied = pickle.loads(pickle.dumps(predictor))
    batch = {"y": data.x, "id": np.arange(ROWS)}
    expected, result = predictor(batch), copied(batch)
    assert list(result) == list(expected) == ["id", "z"]
    assert_same(result["z"], expected["z"])


def test_results_with_errors_are_lists(data: Data) -> None:
    """Ray cannot convert tensors with nulls, so all batches have lists, also without errors."""
    predictor = Predictor(data.programs["images"], on_bad="column")
    images = np.arange(2 * 5 * 6 * 3, dtype=np.uint8).reshape(2, 5, 6, 3)
    good = predictor(pa.table({"image": images.tolist()}))
    bad = predictor(pa.table({"image": [*images.tolist(), [[[1]]]]}))
    expected = data.modules["images"](torch.from_numpy(images)).tolist()
    assert good["output"].to_pylist() == bad["output"].to_pylist()[:2] == expected
    assert bad["output"].to_pylist()[2] is None
    assert good["output"].type == bad["output"].type == pa.list_(pa.float32(), 3)
    pairs = Predictor(data.programs["static"], on_bad="column")(pa.table({"x": [[1.0] * 4, None]}))
    assert pairs["output"].is_null().to_pylist() == [False, True]


def test_lists_of_several_dimensions() -> None:
    tensors = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    cell = Cell("x", DType.float32, (2, 3))
    assert as_lists(write(Rows(tensors), cell)).to_pylist() == tensors.tolist()
    column = as_lists(write(Rows(None, [None, tensors[1]]), cell))
    assert column.to_pylist() == [None, tensors[1].tolist()]
