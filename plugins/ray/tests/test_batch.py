"""`delegate batch` in one process: formats, columns, bad rows, continuing, and errors before any work."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from delegate_ray.runtime import work as working
from delegate_ray.runtime.inputs import parts_of, read, scan
from typer.testing import CliRunner

from delegate.cli.app import app
from delegate.errors import InputError
from delegate.testing import assert_same
from tests.support.commands import FAILED, USAGE, require_exit
from tests.support.hostile import EVIL, require_printable

from .conftest import ROWS, Data, Read, tensor


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def batch(*args: Any) -> str:
    """Run the command in this folder with the output `out`, and return what it prints on stdout."""
    done = CliRunner().invoke(app, ["batch", *map(str, args), "-o", "out"])
    assert done.exit_code == 0, done.output
    return done.stdout


def fails(*args: Any) -> str:
    """Run the command, assert that it fails, and return its one line of stderr."""
    line = ["batch", *map(str, args), "-o", "out"]
    require_exit(line, FAILED)
    return CliRunner().invoke(app, line).stderr


def eager(data: Data, name: str, x: np.ndarray) -> torch.Tensor:
    return torch.cat([data.modules[name](torch.from_numpy(row[None])) for row in x]).detach()


@pytest.mark.parametrize("name", ["net", "pairs", "static"])
def test_rows_equal_eager(data: Data, results: Read, name: str) -> None:
    """Also if a file has one row, which is fewer than `pairs` takes."""
    command = (data.programs[name], "-i", data.parquet, "--keep", "id", "--rows", 7, "--batch", 5)
    assert batch(*command) == f"{ROWS} rows in 8 files in out\n"
    table = results(Path("out"))
    assert table.column_names == ["row", "id", "output"]
    assert table["row"].to_pylist() == table["id"].to_pylist() == list(range(ROWS))
    assert_same(tensor(table, "output"), eager(data, name, data.x))


def write_csv(path: Path, x: np.ndarray) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "text", "b", "c", "d"])
        for row in x.tolist():
            writer.writerow([row[0], 'a "quoted"\nline, with a comma', *row[1:]])
            file.write("\n")  # a blank line is no row


def write_json_lines(path: Path, x: np.ndarray) -> None:
    path.write_text("".join(json.dumps({"x": row}) + "\n\n" for row in x.tolist()))


def write_parts(path: Path, x: np.ndarray) -> None:
    path.mkdir()
    np.save(path / "b.npy", x[20:])
    np.save(path / "a.npy", x[:20])
    (path / "notes.txt").write_text("no input")


INPUTS = {  # name -> its writer, and arguments
    "d.csv": (write_csv, ["--column", "x=a,b,c,d", "--keep", "text"]),
    "d.jsonl": (write_json_lines, ["--keep", "x"]),
    "d.npy": (np.save, []),
    "folder": (write_parts, []),
}


@pytest.mark.parametrize("name", INPUTS)
def test_formats(data: Data, results: Read, name: str) -> None:
    write, args = INPUTS[name]
    write(Path(name), data.x)
    batch(data.programs["net"], "-i", name, "--rows", 9, *args)
    table = results(Path("out"))
    assert table["row"].to_pylist() == list(range(ROWS))
    assert_same(tensor(table, "output"), eager(data, "net", data.x))
    if name == "d.csv":
        assert set(table["text"].to_pylist()) == {'a "quoted"\nline, with a comma'}


def test_several_inputs_and_named_outputs(data: Data, results: Read) -> None:
    ids, scale = np.arange(10, dtype=np.int32) % 8, np.arange(10, dtype=np.float64)
    pyarrow.parquet.write_table(pa.table({"number": ids, "scale": scale}), "d.parquet")
    batch(data.programs["lookup"], "-i", "d.parquet", "--column", "ids=number", "--result", "sum=total")
    table = results(Path("out"))
    assert table.column_names == ["row", "total"]
    expected = data.modules["lookup"](torch.from_numpy(ids).long(), torch.from_numpy(scale).float())
    assert_same(table["total"].combine_chunks().to_numpy(), expected["sum"].detach())


def test_cells_of_different_lengths(data: Data, results: Read) -> None:
    cells = [[float(n)] * (n % 3 + 1) for n in range(10)]
    pyarrow.parquet.write_table(pa.table({"x": cells}), "d.parquet")
    batch(data.programs["double"], "-i", "d.parquet")
    assert results(Path("out"))["output"].to_pylist() == [[2 * value for value in cell] for cell in cells]


def test_a_cell_may_be_a_whole_input(data: Data, results: Read) -> None:
    x = np.random.default_rng(0).standard_normal((7, 3, 2), np.float32)
    np.save("d.npy", x)
    batch(data.programs["whole"], "-i", "d.npy")
    assert_same(tensor(results(Path("out")), "output"), 2 * x)


def write_bad(path: str) -> list[int]:
    """Write rows for `lookup`, and return the numbers of the bad ones."""
    ids = [0, 99, 2, None, 4, 5]
    pyarrow.parquet.write_table(pa.table({"ids": pa.array(ids, pa.int64()), "scale": [1.0] * 6}), path)
    return [1, 3]


def test_bad_rows(data: Data, results: Read) -> None:
    bad = write_bad("d.parquet")
    command = (data.programs["lookup"], "-i", "d.parquet")
    assert "(row 3 of the input" not in fails(*command)
    assert "row 1 of the input" in fails(*command)
    assert os.listdir("out") == ["manifest.json"]
    assert batch(*command, "--bad-rows", "drop") == "6 rows in 1 files in out, 2 bad rows left out\n"
    good = results(Path("out"))
    assert good["row"].to_pylist() == [0, 2, 4, 5]
    for path in Path("out").iterdir():
        path.unlink()
    assert batch(*command, "--bad-rows", "column", "--rows", 2) == "6 rows in 3 files in out, 2 bad rows\n"
    table = results(Path("out"))
    assert table["row"].to_pylist() == list(range(6))
    messages = table["error"].to_pylist()
    assert [row for row, message in enumerate(messages) if message] == bad
    assert messages[3] == "input 'ids': the cell is null"
    kept = table.filter(pa.compute.is_null(table["error"]))
    assert kept["rows"].to_pylist() == good["rows"].to_pylist()
    assert table["sum"].to_pylist()[1] is None


def test_bad_rows_at_the_beginning(data: Data, results: Read) -> None:
    """A first call without good rows does not end the job, and only columns to keep have dictionaries."""
    pyarrow.parquet.write_table(pa.table({"ids": [99, 99, 99, 1], "scale": [1.0] * 4}), "d.parquet")
    command = (data.programs["lookup"], "-i", "d.parquet", "--batch", 2, "--bad-rows", "drop", "--keep", "ids")
    assert batch(*command) == "4 rows in 1 files in out, 3 bad rows left out\n"
    assert results(Path("out"))["row"].to_pylist() == [3]
    group = pyarrow.parquet.read_metadata("out/part-000000.parquet").row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} == {"ids"}


def test_bad_lines_of_text(data: Data, results: Read) -> None:
    Path("d.csv").write_text("a,b,c,d\n1,2,3,4\n1,2,3\n1,2,x,4\n5,6,7,8\n1e999,0,0,0\n")
    lines = ('{"x": [1, 2, 3, 4]}', '{"x": [1, 2]}', '{"x": [1, [2], 3, 4]}', "{}", '{"x"', "[1]")
    large = [f'{{"x": [1, 2, {number}, 4]}}' for number in ("1e400", "9" * 250 + "e99", "-1e+0309", "Infinity")]
    Path("d.jsonl").write_text("\n".join((*lines, *large)))
    messages = {}
    for name, columns in (("d.csv", "a,b,c,d"), ("d.jsonl", "x")):
        batch(data.programs["net"], "-i", name, "--column", f"x={columns}", "--bad-rows", "column")
        messages[name] = results(Path("out"))["error"].to_pylist()
        for path in Path("out").iterdir():
            path.unlink()
    assert messages["d.csv"] == [
        None,
        "input 'x', column 'a': the line has 3 values, and the header 4",
        "input 'x', column 'c': 'x' is not a number of type float32",
        None,
        "input 'x', column 'a': '1e999' is out of the range of float32",
    ]
    assert messages["d.jsonl"][:4] == [
        None,
        "input 'x': the cell has the shape [2], and the program takes [4] for each row",
        "input 'x': the cell has lists of different lengths",
        "input 'x': the cell is null",
    ]
    assert "the line is not JSON" in messages["d.jsonl"][4]
    assert "the line is no JSON object" in messages["d.jsonl"][5]
    assert messages["d.jsonl"][6] == "input 'x': 1e400 is out of the range of float64"
    assert ["out of the range" in (message or "") for message in messages["d.jsonl"][6:]] == [True, True, True, False]


def test_a_folder_of_images(data: Data, results: Read) -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 5, 6, 3), np.uint8)
    Path("images").mkdir()
    for number, image in enumerate(images):
        PIL.Image.fromarray(image).save(f"images/{number:02}.png")
    command = (data.programs["images"], "-i", "images", "--rows", 4, "--keep", "path", "--bad-rows", "column")
    assert "images cannot be kept" in fails(*command, "--keep", "image")
    Path("images/10.jpg").write_bytes(b"no image")
    PIL.Image.fromarray(images[0, :3]).save("images/11.png")
    assert batch(*command) == "12 rows in 3 files in out, 2 bad rows\n"
    table = results(Path("out"))
    assert [Path(path).name for path in table["path"].to_pylist()][9:] == ["09.png", "10.jpg", "11.png"]
    expected = data.modules["images"](torch.from_numpy(images))
    assert_same(tensor(table[:10], "output"), expected)
    assert "the image cannot be read" in table["error"].to_pylist()[10]
    assert "the cell has the shape [3, 6, 3]" in table["error"].to_pylist()[11]
    Path("images/10.jpg").write_bytes(b"changed")
    assert "a job with another input" in fails(*command)


@pytest.mark.parametrize(("keep", "is_same"), [([], True), (["--keep", "path"], False)], ids=["rows", "paths"])
def test_a_folder_of_images_that_is_moved(data: Data, results: Read, keep: list[str], is_same: bool) -> None:
    """The output files of a job have the paths of one folder."""
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    for place in ("old", "new"):
        Path(place, "images").mkdir(parents=True)
        for number, image in enumerate(images):
            PIL.Image.fromarray(image).save(f"{place}/images/{number}.png")
    command = (data.programs["images"], "--rows", 2, *keep, "-i")
    batch(*command, "old/images")
    Path("out/part-000001.parquet").unlink()
    if is_same:
        assert batch(*command, "new/images").startswith("continuing: 1 of 2 files are complete")
        assert_same(tensor(results(Path("out")), "output"), data.modules["images"](torch.from_numpy(images)))
    else:
        assert "a job with another input" in fails(*command, "new/images")
        batch(*command, "old/images")
        folders = {Path(path).parent for path in results(Path("out"))["path"].to_pylist()}
        assert folders == {Path("old/images").absolute()}


def write_deep_png(path: str, kind: int, values: int) -> None:
    """Write a PNG file of 5 x 6 pixels with 16 bits for each value, which Pillow can only read.

    Args:
        path: Where the file is.
        kind: the type of color in the header.
        values: The values that each pixel has.
    """
    header = struct.pack(">IIBBBBB", 6, 5, 16, kind, 0, 0, 0)
    pixels = (b"\0" + struct.pack(">H", 1000) * 6 * values) * 5
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(pixels)), (b"IEND", b""))
    parts = [struct.pack(">I", len(c)) + name + c + struct.pack(">I", zlib.crc32(name + c)) for name, c in chunks]
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


@pytest.mark.parametrize(("kind", "values"), [(0, 1), (2, 3), (4, 2), (6, 4)], ids=["gray", "RGB", "LA", "RGBA"])
def test_images_of_16_bits(data: Data, results: Read, kind: int, values: int) -> None:
    Path("images").mkdir()
    write_deep_png("images/a.png", kind, values)
    PIL.Image.fromarray(np.zeros((5, 6, 3), np.uint8)).save("images/b.png")
    batch(data.programs["images"], "-i", "images", "--bad-rows", "column")
    table = results(Path("out"))
    assert table["error"].to_pylist() == ["input 'image': the image has more than 8 bits for each value", None]
    assert [value is None for value in table["output"].to_pylist()] == [True, False]


def test_images_that_would_change(data: Data, results: Read) -> None:
    """Images of 16 bits would be clipped. Hidden files are not rows, and names may have any letters and bytes."""
    Path("images").mkdir()
    pixels = np.full((5, 6), 1000, np.uint16)
    PIL.Image.fromarray(pixels).save("images/a.png")
    PIL.Image.fromarray(pixels.astype(np.uint8)).save("images/b.PNG")
    PIL.Image.fromarray(pixels.astype(np.uint8)).save(os.fsdecode(b"images/\xff.png"))
    Path("images/.c.png").write_text("of the system")
    command = (data.programs["images"], "-i", "images", "--bad-rows", "column", "--keep", "path")
    assert batch(*command) == "3 rows in 1 files in out, 2 bad rows\n"
    table = results(Path("out"))
    assert table["error"].to_pylist() == [
        "input 'image': the image has more than 8 bits for each value",
        None,
        "column 'path': the text is not UTF-8",
    ]
    assert [value is None for value in table["output"].to_pylist()] == [True, False, True]
    done = CliRunner().invoke(app, ["batch", *map(str, command), "-o", "images/out"])
    assert "the output folder is in the folder of images" in done.stderr
    assert not Path("images/out").exists()


def test_quotes_in_values(data: Data, results: Read) -> None:
    """A quote within a value begins no quoted text."""
    texts = ['5" pipe', "a", '"', 'b "c"', "d\n\ne", "", '6" pipe', "   "]
    rows = [
        f"{n},{text}" if text[:1].isdigit() else f'{n},"{text.replace(chr(34), chr(34) * 2)}"'
        for n, text in enumerate(texts)
    ]
    Path("d.csv").write_text("a,text\n" + "\n".join(rows))
    batch(data.programs["scalar"], "-i", "d.csv", "--column", "x=a", "--keep", "text", "--rows", 3)
    table = results(Path("out"))
    assert table["text"].to_pylist() == texts
    assert table["output"].to_pylist() == [2.0 * n for n in range(len(texts))]


@pytest.mark.parametrize("size", [200_000, 3_000_000])
def test_long_texts(data: Data, results: Read, size: int) -> None:
    """They are longer than a value of Python's reader, and than a block of Arrow's; a bad line changes no other."""
    Path("d.csv").write_text(f"a,text\n1,{'b' * size}\n2\n3,c\n")
    limit = csv.field_size_limit()
    batch(data.programs["scalar"], "-i", "d.csv", "--column", "x=a", "--keep", "text", "--bad-rows", "column")
    table = results(Path("out"))
    assert table["output"].to_pylist() == [2.0, None, 6.0]
    assert [len(text or "") for text in table["text"].to_pylist()] == [size, 0, 1]
    assert csv.field_size_limit() == limit


def test_records_are_those_of_a_csv_reader() -> None:
    choose = random.Random(0)
    for _ in range(150):
        body = "".join(choose.choices(["a", '"', ",", "\n", "\r\n", "b", " "], k=choose.randrange(20)))
        Path("d.csv").write_text(f"x,y\n{body}", newline="")
        expected = [r for r in csv.reader(io.StringIO(body, newline="")) if r]
        problem = ""
        try:
            (file,) = scan(Path("d.csv"), 2)
        except InputError as error:
            problem = str(error)
        if problem:
            assert "has no end" in problem
            continue
        cells = [cell for part in parts_of([file], 2) for _, table in read(file, part, ["y"], 3) for cell in table["y"]]
        texts = [None if isinstance(cell, Exception) else str(cell) for cell in cells]
        assert texts == [r[1] if len(r) == 2 else None for r in expected], body


def test_parts_share_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts in their order read each row once, and parts in any order have their own rows."""
    numbers = np.arange(1000)
    pyarrow.parquet.write_table(pa.table({"x": numbers}), "d.parquet", row_group_size=400)
    (file,) = scan(Path("d.parquet"), 70)
    parts = parts_of([file], 70)
    opened = []
    original = pyarrow.parquet.ParquetFile
    monkeypatch.setattr(
        pyarrow.parquet, "ParquetFile", lambda *args, **kw: opened.append(args) or original(*args, **kw)
    )
    for order in (parts, random.Random(0).sample(parts, len(parts)), parts[::2]):
        for part in order:
            batches = [table["x"].to_numpy() for _, table in read(file, part, ["x"], 64)]
            assert_same(np.concatenate(batches), numbers[part.start : part.start + part.rows])
        if order is parts:
            assert len(opened) == 1


def test_the_first_rows_are_those_of_all_files(data: Data, results: Read) -> None:
    """A file without rows, or with only bad ones, does not end the job. The order of columns may differ."""
    Path("in").mkdir()
    contents = {"a.csv": "", "b.csv": "x\n", "c.csv": "x,y\na,1\nb,1\n", "d.CSV": "y,x\n0,3\n", ".e.csv": "hidden"}
    for name, text in contents.items():
        Path("in", name).write_text(text)
    command = (data.programs["scalar"], "-i", "in", "--bad-rows", "drop", "--rows", 1, "--column", "x=x", "--keep", "y")
    assert batch(*command) == "3 rows in 3 files in out, 2 bad rows left out\n"
    table = results(Path("out"))
    assert (table["row"].to_pylist(), table["y"].to_pylist(), table["output"].to_pylist()) == ([2], ["0"], [6.0])


def _with_and_without_rows(suffix: str, table: pa.Table, folder: Path) -> list[Path]:
    """Write a table of one column x, and the same without rows, as files of a format."""
    cells = table["x"].to_pylist()
    paths = [folder / f"full{suffix}", folder / f"empty{suffix}"]
    for path, rows in zip(paths, (cells, []), strict=True):
        if suffix == ".npy":
            np.save(path, np.array(cells, np.float32)[: len(rows)])
        elif suffix == ".parquet":
            pyarrow.parquet.write_table(table.slice(0, len(rows)), path)
        elif suffix == ".csv":
            path.write_text("".join(f"{text}\n" for text in ("x", *rows)))
        else:
            path.write_text("".join(json.dumps({"x": cell}) + "\n" for cell in rows))
    return paths


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".npy"])
@pytest.mark.parametrize("name", ["net", "static", "scalar", "double", "positive", "half", "whole"])
def test_an_input_without_rows_has_results_without_rows(data: Data, results: Read, name: str, suffix: str) -> None:
    shape = {"scalar": (2,), "double": (2, 5), "whole": (2, 3, 2)}.get(name, (2, 4))
    if suffix == ".csv" and name != "scalar":
        pytest.skip("a cell is one number")
    table = pa.table({"x": np.ones(shape, np.float32).tolist()})
    full, empty = _with_and_without_rows(suffix, table, Path())
    column = "array" if suffix == ".npy" else "x"
    choices = (data.programs[name], "--column", f"x={column}", "--keep", column, "--bad-rows", "column")
    assert batch(*choices, "-i", full) == "2 rows in 1 files in out, 0 bad rows\n"
    wanted = results(Path("out"))
    shutil.rmtree("out")
    assert batch(*choices, "-i", empty) == "0 rows in 1 files in out, 0 bad rows\n"
    found = results(Path("out"))
    assert (found.num_rows, found.schema.names) == (0, wanted.schema.names)
    if suffix == ".jsonl":  # a file without objects has no kept column of another type than text
        found, wanted = found.drop([column]), wanted.drop([column])
    assert found.schema == wanted.schema
    assert batch(*choices, "-i", empty).startswith("continuing: 1 of 1 files are complete")


def test_folders_and_texts_without_rows(data: Data, results: Read) -> None:
    Path("in").mkdir()
    for name, text in {"a.csv": "", "b.csv": "x\n", "c.csv": "y\n"}.items():
        Path("in", name).write_text(text)
    command = (data.programs["scalar"], "--column", "x=x", "--result", "output=z")
    assert batch(*command, "-i", "in") == "0 rows in 1 files in out\n"
    assert results(Path("out")).schema == pa.schema({"row": pa.int64(), "z": pa.float32()})
    shutil.rmtree("out")
    assert batch(*command, "-i", "in/a.csv") == "0 rows in 1 files in out\n"
    shutil.rmtree("out")
    assert "there is no column 'x' for input 'x'" in fails(data.programs["scalar"], "-i", "in/c.csv", "--column", "x=x")


def test_keys_that_are_not_in_the_first_line(data: Data, results: Read) -> None:
    Path("d.jsonl").write_text('{"y": 1}\n{broken\n{"x": 2, "y": "\\ud800"}\n{"x": 3}\n')
    command = (data.programs["scalar"], "-i", "d.jsonl", "--bad-rows", "column")
    batch(*command, "--column", "x=x", "--keep", "y")
    table = results(Path("out"))
    assert table["output"].to_pylist() == [None, None, None, 6.0]
    assert table["y"].to_pylist() == ["1", None, None, None]
    assert table["error"].to_pylist()[0] == "input 'x': the cell is null"
    assert table["error"].to_pylist()[2] == "column 'y': the text is not UTF-8"


def test_kept_arrays_of_other_byte_order(data: Data, results: Read) -> None:
    np.save("d.npy", np.asfortranarray(data.x).astype(">f8"))
    batch(data.programs["net"], "-i", "d.npy", "--keep", "array")
    table = results(Path("out"))
    assert_same(tensor(table, "array"), data.x.astype(np.float64))
    assert_same(tensor(table, "output"), eager(data, "net", data.x))


class Interrupted(Exception):
    """An end of the job in the middle."""


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the job end after some batches, in the middle of an output file."""
    count = 0
    original = working._batch

    def stop(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count > after:
            raise Interrupted
        return original(*args)

    monkeypatch.setattr(working, "_batch", stop)


def test_a_stopped_job_continues(data: Data, results: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (data.programs["net"], "-i", data.parquet, "--rows", 10, "--batch", 5)
    with monkeypatch.context() as patched:
        interrupt(patched, 5)
        require_exit(["batch", *map(str, command), "-o", "out"], FAILED, has_message=False)
    assert results(Path("out"))["row"].to_pylist() == list(range(20))
    before = Path("out/part-000001.parquet").stat().st_mtime_ns
    assert batch(*command) == f"continuing: 2 of 5 files are complete\n{ROWS} rows in 5 files in out\n"
    assert Path("out/part-000001.parquet").stat().st_mtime_ns == before
    table = results(Path("out"))
    assert table["row"].to_pylist() == list(range(ROWS))
    assert_same(tensor(table, "output"), eager(data, "net", data.x))


def test_another_input_program_or_option_is_an_error(data: Data) -> None:
    np.save("d.npy", data.x)
    command = (data.programs["net"], "-i", "d.npy", "--rows", 10)
    batch(*command)
    np.save("d.npy", data.x + 1)
    assert "the output folder belongs to a job with another input" in fails(*command)
    np.save("d.npy", data.x)
    assert "with another program (" in fails(data.programs["static"], *command[1:])
    assert "with another option --rows (" in fails(*command[:-1], 20)
    Path("out/part-000001.parquet").write_bytes(b"not whole")
    assert "this is no output file of the job (" in fails(*command)
    Path("out/part-000001.parquet").unlink()
    Path("out/manifest.json").write_text("[]")
    assert "this is no manifest of a job" in fails(*command)
    Path("out/manifest.json").unlink()
    assert "no manifest of a job" in fails(*command)


def test_an_input_that_changes_during_the_job(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("d.npy", data.x)
    original = working._batch
    times: list[int] = []

    def change(*args: Any) -> Any:
        if not times:
            status = os.stat("d.npy")
            times.append(status.st_mtime_ns)
            np.save("d.npy", data.x + 1)
            os.utime("d.npy", ns=(status.st_atime_ns, status.st_mtime_ns + moved))
        return original(*args)

    for moved in (1000, 0):  # also if the time of the change is the old one, at the end
        with monkeypatch.context() as patched:
            patched.setattr(working, "_batch", change)
            times.clear()
            np.save("d.npy", data.x)
            command = ["batch", str(data.programs["net"]), "-i", "d.npy", "-o", f"out{moved}", "--batch", "5"]
            done = CliRunner().invoke(app, [*command, "--rows", "10"])
        assert "the input changed during the job" in done.stderr
        assert not json.loads(Path(f"out{moved}/manifest.json").read_text())["finished"]


def test_two_jobs_in_one_folder(data: Data, results: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that began first ends with an error at its next file, so no rows are mixed."""
    np.save("first.npy", data.x)
    np.save("second.npy", data.x + 1)
    command = ["batch", str(data.programs["net"]), "-o", "out", "--rows", "10", "-i"]
    original = working._batch

    def begin_another(*args: Any) -> Any:
        monkeypatch.setattr(working, "_batch", original)
        assert CliRunner().invoke(app, [*command, "second.npy"]).exit_code == 0
        return original(*args)

    monkeypatch.setattr(working, "_batch", begin_another)
    stderr = CliRunner().invoke(app, [*command, "first.npy"]).stderr
    assert "the output folder has no longer the manifest of this job" in stderr
    assert json.loads(Path("out/manifest.json").read_text())["finished"]
    assert_same(tensor(results(Path("out")), "output"), eager(data, "net", data.x + 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "output files of the job have been removed"),
        (lambda path: path.write_bytes(Path("other/part-000000.parquet").read_bytes()), "no output file of the job"),
    ],
    ids=["removed", "replaced"],
)
def test_output_files_that_change_during_the_job(
    data: Data, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Any], message: str
) -> None:
    np.save("d.npy", data.x)
    command = ["batch", str(data.programs["net"]), "-i", "d.npy", "--rows", "10"]
    assert CliRunner().invoke(app, [*command, "-o", "other", "--bad-rows", "drop"]).exit_code == 0
    original = working._batch

    def change_first(*args: Any) -> Any:
        if (first := Path("out/part-000000.parquet")).exists():
            monkeypatch.setattr(working, "_batch", original)
            change(first)
        return original(*args)

    monkeypatch.setattr(working, "_batch", change_first)
    done = CliRunner().invoke(app, [*command, "-o", "out"])
    assert done.exit_code == 1
    assert message in done.stderr
    assert not json.loads(Path("out/manifest.json").read_text())["finished"]


def test_a_command_that_is_killed_continues(data: Data, results: Read) -> None:
    np.save("d.npy", np.tile(data.x, (2000, 1)))
    command = ["batch", str(data.programs["static"]), "-i", "d.npy", "-o", "out", "--rows", "5000"]
    line = [sys.executable, "-m", "delegate", *command]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not Path("out/part-000001.parquet").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    complete = len([*Path("out").glob("part-*")])
    assert complete < 20
    stdout = batch(*command[1:4], "--rows", 5000)
    assert stdout == f"continuing: {complete} of 20 files are complete\n100000 rows in 20 files in out\n"
    table = results(Path("out"))
    assert table["row"].to_pylist() == list(range(100_000))
    assert_same(tensor(table, "output"), np.tile(eager(data, "static", data.x).numpy(), (2000, 1)))


def test_a_full_disk_leaves_finished_files_whole(data: Data, results: Read) -> None:
    """The limit for the size of a file plays the full disk: the last file has more rows than the others."""
    Path("in").mkdir()
    np.save("in/a.npy", data.x)
    np.save("in/b.npy", np.zeros((20_000, 4), np.float32) + np.arange(20_000, dtype=np.float32)[:, None])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    command = (data.programs["net"], "-i", "in", "--rows", 20_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        stderr = fails(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "the output file cannot be written: File too large" in stderr
    assert results(Path("out"))["row"].to_pylist() == list(range(ROWS))
    assert batch(*command).startswith("continuing: 1 of 2 files are complete")


TEXTS = {  # a file of the tests below -> its content
    "quote.csv": 'a,b\n1,2\n3,"4\n5,6\n',
    "return.csv": "a,b\n1,2\r3,4\r",
    "twice.csv": "a,b,c,d,a\n1,2,3,4,5\n",
    "two/a.csv": "x\n1\n",
    "two/b.csv": "y\n1\n",
    "nested/a.csv/b.csv": "x\n1\n",
}
ERRORS = [  # program, arguments, message
    ("net", ["-i", "absent.parquet"], "there is no such input"),
    ("net", ["-i", "d.txt"], "'.txt' is not a format of inputs"),
    ("net", ["-i", "damaged.parquet"], "the input cannot be read"),
    ("net", ["-i", "nothing.npy"], "the input cannot be read: ValueError: it is empty"),
    ("net", ["-i", "."], "the folder has files of several formats: .csv, .npy"),
    ("net", ["-i", "two"], "its columns are not those of"),
    ("net", ["-i", "nested"], "the input folder has a folder with the name of a file"),
    ("net", ["-i", "quote.csv"], "the quoted text that begins in line 3 has no end"),
    ("net", ["-i", "return.csv"], "line 2 has a carriage return"),
    ("net", ["-i", "twice.csv", "--column", "x=a,b,c,d"], "there are two columns 'a'"),
    ("net", ["-i", "complex.npy"], "the cell is complex64, and the program takes float32"),
    ("double", ["-i", "long.npy", "--keep", "array"], "column 'array' cannot be kept: Arrow has no column of"),
    ("whole", ["-i", "wide.npy"], "here a cell is a whole input"),
    ("net", ["-i", "DATA", "--column", "x=y"], "there is no column 'y' for input 'x'"),
    ("net", ["-i", "DATA", "--column", "z=x"], "there is no input 'z'"),
    ("net", ["-i", "DATA", "--column", "x=x,id"], "input 'x' has 2 columns, and takes cells of the shape [4]"),
    ("net", ["-i", "DATA", "--column", "x"], "--column 'x' is not NAME=COLUMN"),
    ("net", ["-i", "DATA", "--column", "x=x", "--column", "x=id"], "--column has 'x' twice"),
    ("net", ["-i", "DATA", "--result", "y=x"], "there is no output 'y'"),
    ("net", ["-i", "DATA", "--result", "output=row"], "an output file would have two columns 'row'"),
    ("net", ["-i", "DATA", "--keep", "y"], "there is no column 'y' to keep"),
    ("net", ["-i", "DATA", "--method", "f"], "there is no method 'f'"),
    ("net", ["-i", "wide.npy", "--bad-rows", "drop"], "the cell has the shape [5], and the program takes [4]"),
    ("net", ["-i", "text.npy"], "its elements have the type <U1, and must be numbers"),
    (
        "lookup",
        ["-i", "DATA", "--column", "ids=x", "--column", "scale=id"],
        "the cell has the shape [4], and the program takes [] for each row",
    ),
    ("mean", ["-i", "DATA"], "the rows of a batch of"),
    ("counter", ["-i", "DATA"], "the program has states"),
    ("absent", ["-i", "DATA"], "the program cannot be read: No such file"),
]


@pytest.mark.parametrize(("program", "args", "message"), ERRORS, ids=[message for *_, message in ERRORS])
def test_errors_before_any_work(data: Data, program: str, args: list[str], message: str) -> None:
    Path("d.txt").write_text("x\n")
    np.save("wide.npy", np.zeros((3, 5), np.float32))
    np.save("text.npy", np.array([["a"] * 4] * 3))
    Path("nothing.npy").touch()
    Path("damaged.parquet" if "." not in args else "a.csv").write_text("x\n1\n")
    if "." not in args:
        np.save("complex.npy", np.zeros((3, 4), np.complex64))
        np.save("long.npy", np.zeros((3, 3), np.longdouble))
        for path, text in TEXTS.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text, newline="")
    stderr = fails(data.programs.get(program, "absent.dlg"), *(str(data.parquet) if a == "DATA" else a for a in args))
    assert message in stderr
    assert not Path("out").exists() or os.listdir("out") == ["manifest.json"]


def test_what_cannot_be_written_is_an_error_first() -> None:
    """Neither program nor input are there: they are not looked at yet."""
    Path("file").write_text("old")
    stderr = CliRunner().invoke(app, ["batch", "absent.dlg", "-i", "absent.csv", "-o", "file/below"]).stderr
    assert "the outputs cannot be written" in stderr
    assert Path("file").read_text() == "old"


def test_rows_that_depend_on_each_other_run_one_by_one(data: Data, results: Read) -> None:
    batch(data.programs["mean"], "-i", data.parquet, "--batch", 1)
    assert_same(tensor(results(Path("out")), "output"), np.zeros_like(data.x))


@pytest.mark.parametrize("args", [[], ["x"], ["x", "-i", "x", "-o", "out", "--rows", "0"], ["x", "-i", "x"]])
def test_wrong_usage(args: list[str]) -> None:
    require_exit(["batch", *args], USAGE)


@pytest.mark.parametrize("args", [[EVIL, "-i", "x"], ["x", "-i", EVIL], ["x", "-i", "x", "--column", EVIL]], ids=ascii)
def test_it_prints_no_control_characters(args: list[str]) -> None:
    require_printable(["batch", *args, "-o", "out"])


def test_it_needs_neither_torch_nor_ray(data: Data, results: Read) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['ray'] = None\n"
        "from delegate.cli.main import main\n"
        f"sys.argv = ['delegate', 'batch', {str(data.programs['net'])!r}, '-i', {str(data.parquet)!r}, '-o', 'out']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(results(Path("out"))) == ROWS
    stderr = subprocess.run(
        [sys.executable, "-c", code.replace("'out']", "'new', '--ray', 'auto']")],
        capture_output=True, text=True, check=False,
    ).stderr  # fmt: skip
    assert stderr == "error: --ray needs Ray, which is not installed: pip install 'delegate-ray[ray]'\n"
