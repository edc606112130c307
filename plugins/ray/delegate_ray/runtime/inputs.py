"""Input files of a job: their formats, a scan of their rows, and reading of a part.

A file is cut into parts with a number of rows, each of which any process can read by itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from delegate.common.files import open_to_read, require_regular
from delegate.errors import InputError, did_you_mean
from delegate.plugins import one_line
from delegate_ray.runtime.parquet_files import Parquet
from delegate_ray.runtime.parts import (
    IMAGES,
    Batch,
    Contents,
    InputFile,
    Limits,
    Part,
    digest_of_input,
    images_of,
    is_visible,
    suffix_of,
)
from delegate_ray.runtime.text_files import Csv, JsonLines

ARRAY = "array"  # the column of a .npy file
IMAGE, PATH = "image", "path"  # the columns of a folder of images
_DECODERS = ("PNG", "JPEG", "MPO", "BMP", "DIB", "WEBP", "GIF", "TIFF")  # of Pillow: others start programs
_MOST_PARTS = 1_000_000  # their names have six digits


class _Format(Protocol):
    """A format of input files."""

    def scan(self, path: str, rows: int) -> Contents:
        """Return the contents of a file; `rows` is the number of rows in a part."""

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int, limits: Limits) -> Iterator[Batch]:
        """Yield the columns of a part, at most `batch` rows at a time."""

    def empty(self, path: str, columns: Sequence[str]) -> Mapping[str, Any]:
        """Return the columns of a file without rows, with their types."""


class _Npy:
    def scan(self, path: str, rows: int) -> Contents:
        array = _map(path)
        if array.dtype.kind not in "biufc":
            raise ValueError(f"its elements have the type {array.dtype}, and must be numbers")
        if len(array) > os.stat(path).st_size:
            raise ValueError(f"it has {len(array)} rows without elements")
        return Contents(digest_of_input(path), len(array), (ARRAY,))

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int, limits: Limits) -> Iterator[Batch]:
        array = _map(file.path)[part.start : part.start + part.rows]
        for start in range(0, part.rows, batch):
            rows = array[start : start + batch]
            yield len(rows), dict.fromkeys(columns, rows)

    def empty(self, path: str, columns: Sequence[str]) -> Mapping[str, Any]:
        return dict.fromkeys(columns, _map(path))


def _map(path: str) -> Any:
    """Return the array of a .npy file, mapped; raise OSError or ValueError if it is not such a file."""
    with open_to_read(path) as file:
        if (begin := file.read(4)) != b"\x93NUM":
            raise ValueError("it is not a .npy file" if begin else "it is empty")
    try:
        array = np.lib.format.open_memmap(path, "r")
    except (OSError, ValueError):
        raise
    except Exception as error:  # NumPy's are of many kinds
        raise ValueError(one_line(error)) from error
    if not array.ndim:
        raise ValueError("it is no array with rows")
    return array


class _Images:
    """A folder whose files are rows."""

    def scan(self, path: str, rows: int) -> Contents:
        import PIL  # noqa: F401 - an error before any work, if it is absent

        return Contents(digest_of_input(path), len(images_of(path)), (IMAGE, PATH))

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int, limits: Limits) -> Iterator[Batch]:
        paths = images_of(file.path)[part.start : part.start + part.rows]
        for start in range(0, len(paths), batch):
            own = paths[start : start + batch]
            images = [_decode(path, limits.get(IMAGE)) for path in own] if IMAGE in columns else []
            yield len(own), {name: images if name == IMAGE else own for name in columns}

    def empty(self, path: str, columns: Sequence[str]) -> Mapping[str, Any]:
        return {name: [] for name in columns}


def _decode(path: str, most: int | None) -> Any:
    """Return an image as RGB of the shape (height, width, 3), or the error; `most` is the most numbers of an image."""
    import PIL.Image

    PIL.Image.init()
    try:
        with open_to_read(path) as file:
            is_deep = _is_deep_png(file.read(25))
            file.seek(0)
            with PIL.Image.open(file, formats=[name for name in _DECODERS if name in PIL.Image.OPEN]) as image:
                shape = [image.height, image.width, 3]
                if most is not None and math.prod(shape) > most:
                    return ValueError(f"the cell has the shape {shape}, and the program takes up to {most} numbers")
                if image.mode.startswith(("I", "F")) or is_deep:  # Pillow would clip the values, or drop bits
                    return ValueError("the image has more than 8 bits for each value")
                return np.asarray(image.convert("RGB"))
    except Exception as error:  # decoders raise all kinds
        return ValueError(f"the image cannot be read: {one_line(error)}")


def _is_deep_png(head: bytes) -> bool:
    """Return True for a PNG file with 16 bits for each value, of which Pillow reads 8 without a sign in the mode."""
    return head.startswith(b"\x89PNG") and head[24:] == b"\x10"


_JSON_LINES = JsonLines()
_FORMATS: Mapping[str, _Format] = {
    ".parquet": Parquet(),
    ".csv": Csv(),
    ".jsonl": _JSON_LINES,
    ".ndjson": _JSON_LINES,
    ".npy": _Npy(),
}


def scan(path: Path, rows: int) -> list[InputFile]:
    """Return the files of an input, in the order of their names.

    Args:
        path: a file, or a folder of files in one format, or a folder of images.
        rows: the number of rows in a part.

    Raises:
        InputError: the file does not exist, or it cannot be read, or its format is unknown.
    """
    if not os.path.exists(path):
        raise InputError("there is no such input", where=str(path), remedy="name a file, or a folder of files")
    paths = _paths(path) if os.path.isdir(path) else [path]
    if not paths and images_of(str(path)):
        return [_scan(path, rows)]
    if not paths:
        remedy = f"the formats are {', '.join((*_FORMATS, *sorted(IMAGES)))}; files in subfolders are not read"
        raise InputError("the folder has no input files", where=str(path), remedy=remedy)
    files = [_scan(p, rows) for p in paths]
    full = [file for file in files if file.contents.rows]
    for file in full:
        is_fixed = _format_of(Path(file.path)) is not _JSON_LINES  # objects may lack a key
        if is_fixed and sorted(file.contents.columns) != sorted(full[0].contents.columns):
            what = f"its columns are not those of {full[0].path}"
            raise InputError(what, where=file.path, remedy="put files with other columns into another folder")
    return files


def _paths(folder: Path) -> list[Path]:
    """Return the input files of a folder; raises InputError for several formats, or a folder in place of a file."""
    paths = sorted(p for p in folder.iterdir() if is_visible(p.name) and suffix_of(p.name) in _FORMATS)
    if nested := next((p for p in paths if os.path.isdir(p)), None):
        remedy = "name this folder as --input, or move its files"
        raise InputError("the input folder has a folder with the name of a file", where=str(nested), remedy=remedy)
    if len({_format_of(p) for p in paths}) > 1:
        what = f"the folder has files of several formats: {', '.join(sorted({suffix_of(p.name) for p in paths}))}"
        raise InputError(what, where=str(folder), remedy="put the files of each format into a folder of their own")
    return paths


def _scan(path: Path, rows: int) -> InputFile:
    form = _format_of(path)
    if form is None:
        suffix = suffix_of(path.name)
        remedy = did_you_mean(suffix, _FORMATS)
        raise InputError(f"{suffix!r} is not a format of inputs", where=str(path), remedy=remedy)
    try:
        status = os.stat(path)
        if not os.path.isdir(path):
            require_regular(path)
        contents = form.scan(str(path), rows)
        return InputFile(str(path.absolute()), status.st_size, status.st_mtime_ns, contents)
    except ModuleNotFoundError as error:
        remedy = "pip install 'delegate-ray[images]'"
        raise InputError(f"images need {error.name}, which is not installed", where=str(path), remedy=remedy) from error
    except Exception as error:  # readers raise all kinds
        what = f"the input cannot be read: {one_line(error)}"
        raise InputError(
            what, where=str(path), remedy="check that it is whole, and of the format of its name"
        ) from error


def _format_of(path: Path) -> _Format | None:
    return _Images() if os.path.isdir(path) else _FORMATS.get(suffix_of(path.name))


def parts_of(files: Sequence[InputFile], rows: int) -> list[Part]:
    """Return the parts of all files; `rows` is the number of rows in a part. An input without rows is one part."""
    if (count := sum(-(-max(file.contents.rows, 0) // rows) for file in files)) > _MOST_PARTS:
        what = f"the input has rows for {count:,} output files, and a job has up to {_MOST_PARTS:,}"
        raise InputError(what, where=files[0].path, remedy="write more rows into each: --rows")
    parts: list[Part] = []
    first = 0
    for number, file in enumerate(files):
        for index, start in enumerate(range(0, file.contents.rows, rows)):
            count = min(rows, file.contents.rows - start)
            parts.append(Part(len(parts), number, index, start, first + start, count))
        first += file.contents.rows
    if parts:
        return parts
    named = next((number for number, file in enumerate(files) if file.contents.columns), 0)
    return [Part(0, named, 0, 0, 0, 0)]


def read(
    file: InputFile, part: Part, columns: Sequence[str], batch: int, limits: Limits = MappingProxyType({})
) -> Iterator[Batch]:
    """Yield the columns of a part, at most `batch` rows at a time; raises InputError if the file has changed.

    Columns have all rows of the part, and an unreadable cell is an exception in a list. A part without rows is one
    batch, whose columns have their types.
    """
    file.require_unchanged()
    count, form = 0, _format_of(Path(file.path))
    assert form is not None  # it was scanned
    try:
        if not part.rows:
            yield 0, form.empty(file.path, columns)
            return
        for rows, table in form.read(file, part, columns, batch, limits):
            count += rows
            yield rows, table
    except Exception as error:  # readers raise all kinds
        file.require_unchanged()
        what = f"rows from {part.start} on cannot be read: {one_line(error)}"
        raise InputError(what, where=file.path, remedy="check that the file is whole") from error
    file.require_unchanged()
    if count != part.rows:
        what = f"there are {count} rows from row {part.start} on, in place of {part.rows}"
        raise InputError(what, where=file.path, remedy="check that the file is whole")
