"""Untrusted inputs: what is not a regular file, headers that are odd, and cells much larger than the program takes."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet
import pytest
from delegate_ray.runtime.inputs import parts_of, read, scan
from typer.testing import CliRunner

from delegate.cli.app import app
from delegate.errors import InputError

from .conftest import Data, Read

LARGE = 1 << 25  # numbers in one cell, of a program that takes 4
_MEASURED = """
import resource, sys
from delegate.cli.main import main
sys.argv = ["delegate", "batch", *sys.argv[1:]]
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """End a test that waits."""
    signal.alarm(120)
    yield
    signal.alarm(0)


def batch(*args: Any) -> Any:
    return CliRunner().invoke(app, ["batch", *map(str, args), "-o", "out"])


# -- what is no regular file -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.npy", "x.csv", "x.jsonl", "x.ndjson", "x.parquet", "folder/x.csv"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_inputs_that_never_end(data: Data, name: str, kind: str) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(name)
    else:
        Path(name).symlink_to("/dev/zero")
    done = batch(data.programs["net"], "-i", name if "/" not in name else "folder")
    assert done.exit_code == 1
    assert f"the input cannot be read: OSError: [Errno 22] this is a {kind}, not a file" in done.stderr


def test_files_of_a_job_that_never_end(data: Data) -> None:
    os.mkfifo("m.dlg")
    assert "the program cannot be read: this is a pipe" in batch("m.dlg", "-i", data.parquet).stderr
    command = (data.programs["net"], "-i", data.parquet, "--rows", 10)
    assert batch(*command).exit_code == 0
    for name, message in (("part-000001.parquet", "no output file of the job"), ("manifest.json", "no manifest of a")):
        Path("out", name).unlink()
        os.mkfifo(Path("out", name))
        assert message in batch(*command).stderr


def test_images_that_never_end(data: Data, results: Read) -> None:
    Path("images").mkdir()
    PIL.Image.fromarray(np.zeros((5, 6, 3), np.uint8)).save("images/a.png")
    os.mkfifo("images/b.png")
    Path("images/c.png").symlink_to("/dev/zero")
    done = batch(data.programs["images"], "-i", "images", "--bad-rows", "column")
    assert done.exit_code == 0, done.stderr
    assert [bool(error) for error in results(Path("out"))["error"].to_pylist()] == [False, True, True]


def test_images_of_other_formats(data: Data, results: Read) -> None:
    """The content decides, not the name; formats for which Pillow starts programs are not read."""
    Path("images").mkdir()
    image = PIL.Image.fromarray(np.zeros((5, 6, 3), np.uint8))
    for name, kind in (("a.png", "JPEG"), ("b.jpg", "GIF"), ("c.bmp", "TIFF"), ("d.png", "EPS"), ("e.webp", "WEBP")):
        image.save(f"images/{name}", format=kind)
    assert batch(data.programs["images"], "-i", "images", "--bad-rows", "column").exit_code == 0
    assert [e and e[:40] for e in results(Path("out"))["error"].to_pylist()] == [
        None, None, None, "input 'image': the image cannot be read:", None,
    ]  # fmt: skip


# -- odd headers -------------------------------------------------------------------------------------------------------


def npy(header: str, content: bytes = b"") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


HEADERS = {
    "not closed": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1"),
    "an open text": npy("{'descr': '''"),
    "no dict": npy("[1]"),
    "other keys": npy("{'descr': '<f4'}"),
    "a shape of texts": npy("{'descr': '<f4', 'fortran_order': False, 'shape': ('a',)}"),
    "a negative shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 4)}"),
    "a huge shape": npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62}, 4)}}", bytes(64)),
    "a larger shape": npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**70}, 4)}}", bytes(64)),
    "rows without elements": npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**15}, 0)}}"),
    "a number": npy("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", bytes(4)),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"\x80\x04N."),
    "an odd type": npy("{'descr': '<q9', 'fortran_order': False, 'shape': (1,)}", bytes(64)),
    "no text": npy("\xff\xfe\x00\x01"),
    "cut": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4)}", bytes(8)),
    "an archive": b"PK\x05\x06" + bytes(18),
    "nothing": b"",
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_headers_of_npy(data: Data, content: bytes) -> None:
    Path("x.npy").write_bytes(content)
    done = batch(data.programs["net"], "-i", "x.npy")
    assert done.exit_code == 1
    assert "the input cannot be read: " in done.stderr


def test_as_many_rows_as_no_folder_can_have(data: Data) -> None:
    pyarrow.parquet.write_table(pa.table({"x": pa.nulls(3_000_000, pa.list_(pa.float32()))}), "x.parquet")
    done = batch(data.programs["net"], "-i", "x.parquet", "--rows", 1)
    assert "the input has rows for 3,000,000 output files, and a job has up to 1,000,000" in done.stderr


# -- large cells -------------------------------------------------------------------------------------------------------


def measure_command(*args: Any) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run the command in a process of its own; return the process, and its most bytes of memory."""
    command = [sys.executable, "-W", "ignore", "-c", _MEASURED, *map(str, args), "-o", "out", "--bad-rows", "column"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, int(done.stderr.split()[-1]) << 10


def write_list(path: str, kind: pa.DataType) -> None:
    """Write rows of 4 numbers, and a large one in a row group of its own."""
    values = pa.array(np.zeros(LARGE, np.int8)).cast(kind)
    with pyarrow.parquet.ParquetWriter(path, pa.schema({"x": pa.list_(kind)})) as writer:
        for sizes in ([4] * 10, [LARGE], [4] * 3):
            offsets = pa.array(np.cumsum([0, *sizes]), pa.int32())
            writer.write_table(pa.table({"x": pa.ListArray.from_arrays(offsets, values[: sum(sizes)])}))


def write_fixed(path: str) -> None:
    values = pa.array(np.zeros(LARGE, np.float32))
    pyarrow.parquet.write_table(pa.table({"x": pa.FixedSizeListArray.from_arrays(values, LARGE)}), path)


def write_text(path: str) -> None:
    """Write one long text that is in each of 400 rows, and in the file once."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), pa.array(["1" * (LARGE // 4)]))
    pyarrow.parquet.write_table(pa.table({"x": column}), path, store_schema=False)


def write_image(path: str) -> None:
    Path(path).mkdir()
    PIL.Image.fromarray(np.zeros((5, 6, 3), np.uint8)).save(f"{path}/a.png")
    rows, columns = 9000, 9000
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(rows * (1 + 3 * columns)), 9)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    parts = [struct.pack(">I", len(c)) + name + c + struct.pack(">I", zlib.crc32(name + c)) for name, c in chunks]
    Path(path, "b.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def write_lines(path: str) -> None:
    large = json.dumps({"x": [0.5] * (LARGE // 4)})
    Path(path).write_text(json.dumps({"x": [1, 2, 3, 4]}) + "\n" + large + "\n")


CELLS: dict[
    str, tuple[str, str, Callable[[str], None], str, int]
] = {  # program, path, error of a row, and their number
    "list of floats": (
        "net",
        "x.parquet",
        lambda p: write_list(p, pa.float32()),
        "the program takes up to 4 in each",
        1,
    ),
    "list of bytes": ("net", "x.parquet", lambda p: write_list(p, pa.int8()), "the program takes up to 4 in each", 1),
    "fixed list": ("net", "x.parquet", write_fixed, "the program takes up to 4 in each", 1),
    "text": ("scalar", "x.parquet", write_text, "is not a number of type float32", 400),
    "image": ("images", "images", write_image, "[9000, 9000, 3], and the program takes up to 90 numbers", 1),
    "JSON": ("net", "x.jsonl", write_lines, "the line has more than", 1),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_large_cell_takes_no_memory(data: Data, results: Read, name: str) -> None:
    program, path, write, message, count = CELLS[name]
    write(path)
    _, least = measure_command(data.programs["net"], "-i", data.parquet)
    for file in Path("out").iterdir():
        file.unlink()
    done, most = measure_command(data.programs[program], "-i", path)
    assert message in done.stderr or done.returncode == 0, done.stderr  # an error if no row fits
    if done.returncode == 0:
        errors = [error for error in results(Path("out"))["error"].to_pylist() if error]
        assert len(errors) == count
        assert message in errors[0]
    size = sum(f.stat().st_size for f in ([Path(path)] if Path(path).is_file() else Path(path).iterdir()))
    assert most - least < (80 << 20) + 4 * size


def test_deep_lists_are_errors_of_their_rows(data: Data, results: Read) -> None:
    deep = "[" * 900 + "1" + "]" * 900
    Path("x.jsonl").write_text(f'{{"x": [1, 2, 3, 4]}}\n{{"x": {deep}}}\n{{"x": [1, "a"]}}\n')
    assert batch(data.programs["net"], "-i", "x.jsonl", "--bad-rows", "column").exit_code == 0
    errors = results(Path("out"))["error"].to_pylist()
    assert [bool(error) for error in errors] == [False, True, True]


# -- damaged files -----------------------------------------------------------------------------------------------------


def seeds(data: Data) -> dict[str, bytes]:
    """Valid files of each format, by name."""
    image, array = io.BytesIO(), io.BytesIO()
    PIL.Image.fromarray(np.arange(90, dtype=np.uint8).reshape(5, 6, 3)).save(image, "PNG")
    np.save(array, data.x)
    lines = "".join(json.dumps({"x": row.tolist(), "id": i}) + "\n" for i, row in enumerate(data.x))
    text = "x,id\n" + "".join(f'"{i}.5",{i}\n' for i in range(50))
    return {
        "x.parquet": data.parquet.read_bytes(), "x.npy": array.getvalue(), "x.jsonl": lines.encode(),
        "x.csv": text.encode(), "x.png": image.getvalue(),
    }  # fmt: skip


def mutate(content: bytes, choose: random.Random) -> bytes:
    """Return the bytes of a file with a few changes."""
    changed = bytearray(content)
    for _ in range(choose.choice((1, 2, 8))):
        at = choose.randrange(len(changed))
        how = choose.randrange(4)
        if how == 0:
            changed[at] = choose.choice((0, 1, 127, 128, 255))
        elif how == 1:
            changed[at] ^= 1 << choose.randrange(8)
        elif how == 2:
            del changed[at : at + choose.randrange(1, 9)]
        else:
            changed[at:at] = changed[choose.randrange(len(changed)) :][: choose.randrange(1, 9)]
        changed = changed or bytearray(b"x")
    return bytes(changed)


def peak_memory() -> int:
    """Return the largest resident memory of this process since the peak was reset, in KiB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


@pytest.mark.parametrize("name", ["x.parquet", "x.npy", "x.jsonl", "x.csv", "x.png"])
def test_damaged_files(data: Data, name: str) -> None:
    """Rows, or an error of the input; nothing else."""
    content = seeds(data)[name]
    place = Path("images" if name.endswith("png") else name)
    if name.endswith("png"):
        place.mkdir()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew: other tests in this process may have had more
    column, outcomes = "image" if name.endswith("png") else "array" if name.endswith("npy") else "x", set()
    for number in range(150):
        (place / name if place.is_dir() else place).write_bytes(mutate(content, random.Random(number)))
        try:
            (file,) = scan(place, 20)
            for part in parts_of([file], 20):
                for rows, table in read(file, part, [column], 8, {column: 4}):
                    assert len(table[column]) == rows
            outcomes.add("rows")
        except InputError:
            outcomes.add("error")
    assert "rows" in outcomes
    assert peak_memory() < 4 << 20
