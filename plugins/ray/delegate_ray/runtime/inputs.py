"""Input files of a job: their rows, their checksums, and reading of some rows.

A file is cut into parts of a number of rows. For a text file, a scan records the place of each part, so that any
process can read a part by itself.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from delegate.errors import InputError, did_you_mean
from delegate.plugins import one_line

ARRAY = "array"  # the column of a .npy file
IMAGE, PATH = "image", "path"  # the columns of a folder of images
IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp"})
Batch = tuple[int, Mapping[str, Any]]  # the number of rows, and columns by name


class Contents(NamedTuple):
    """The facts that a scan of a file finds.

    Args:
        digest: SHA-256 of its bytes.
        rows: their number.
        columns: the names of the columns.
        places: for a text file, the offset of each part in bytes.
    """

    digest: str
    rows: int
    columns: tuple[str, ...]
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file as a job has scanned it.

    Args:
        path: absolute; a folder if the rows are images.
        size: in bytes.
        modified: time of the last change, in nanoseconds.
        contents: what the scan found.
    """

    path: str
    size: int
    modified: int
    contents: Contents

    def require_unchanged(self) -> None:
        """Raise InputError if the file has another size or time than during the scan."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            what = f"the input cannot be read: {error.strerror}"
            raise InputError(what, where=self.path, remedy="give each node the file at this path") from error
        if (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
            raise _changed(self.path)

    def require_same_bytes(self) -> None:
        """Raise InputError if the checksum is another one than that of the scan."""
        try:
            digest = _digest(self.path)
        except OSError:
            digest = ""
        if digest != self.contents.digest:
            raise _changed(self.path)


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of an input file, whose results are one output file.

    Args:
        number: of the part in the job.
        file: the number of its input file.
        index: of the part in its file.
        start: its first row in its file.
        first: its first row among the rows of all files.
        rows: the number of its rows.
    """

    number: int
    file: int
    index: int
    start: int
    first: int
    rows: int


class _Format(Protocol):
    """A format of input files."""

    def scan(self, path: str, rows: int) -> Contents:
        """Return the contents of a file; `rows` is the number of rows of a part."""

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int) -> Iterator[Batch]:
        """Yield the columns of a part, at most `batch` rows at a time."""


class _Parquet:
    def scan(self, path: str, rows: int) -> Contents:
        with pyarrow.parquet.ParquetFile(path) as parquet:
            return Contents(_digest(path), parquet.metadata.num_rows, tuple(parquet.schema_arrow.names))

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int) -> Iterator[Batch]:
        with pyarrow.parquet.ParquetFile(file.path, memory_map=True) as parquet:
            groups, first, skipped = [], 0, 0
            for number in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(number).num_rows
                if first + count <= part.start:
                    skipped += count
                elif first < part.start + part.rows:
                    groups.append(number)
                first += count
            left, skip = part.rows, part.start - skipped
            for records in parquet.iter_batches(batch, row_groups=groups, columns=list(columns)):
                own = records.slice(skip, left)
                skip = max(0, skip - records.num_rows)
                if own.num_rows:
                    yield own.num_rows, {name: own.column(name) for name in columns}
                    left -= own.num_rows
                if not left:
                    return


class _Npy:
    def scan(self, path: str, rows: int) -> Contents:
        return Contents(_digest(path), len(_map(path)), (ARRAY,))

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int) -> Iterator[Batch]:
        array = _map(file.path)[part.start : part.start + part.rows]
        for start in range(0, part.rows, batch):
            rows = array[start : start + batch]
            yield len(rows), dict.fromkeys(columns, rows)


def _map(path: str) -> Any:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray) or not array.ndim:
        raise ValueError("it is no array with rows")
    return array


class _Text:
    """A format with a row in each line that is not blank."""

    has_header = False  # the first line has the names of the columns

    def scan(self, path: str, rows: int) -> Contents:
        with open(path, "rb") as file:
            return self._scan(file, rows)

    def _scan(self, file: BinaryIO, rows: int) -> Contents:
        digest, record, places = hashlib.sha256(), bytearray(), list[int]()
        columns: tuple[str, ...] = ()
        count = offset = start = 0
        is_open = is_blank = False
        for line in file:
            digest.update(line)
            if not is_open:
                start, is_blank = offset, not line.strip()
            offset += len(line)
            if not columns:
                record += line
            is_open ^= self.has_header and line.count(b'"') % 2 == 1  # a quoted text may have line ends
            if is_open or is_blank:
                continue
            if not columns:
                columns = self.names(bytes(record))
                if self.has_header:
                    continue
            if count % rows == 0:
                places.append(start)
            count += 1
        return Contents(digest.hexdigest(), count, columns, (*places, offset))

    def names(self, record: bytes) -> tuple[str, ...]:
        """Return the names of the columns from the first record."""
        raise NotImplementedError

    def records(self, file: InputFile, part: Part) -> bytes:
        """Return the lines of a part."""
        start, end = file.contents.places[part.index : part.index + 2]
        with open(file.path, "rb") as opened:
            opened.seek(start)
            return opened.read(end - start)


class _Csv(_Text):
    has_header = True

    def names(self, record: bytes) -> tuple[str, ...]:
        return tuple(next(csv.reader(io.StringIO(record.decode("utf-8-sig"), newline=""))))

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int) -> Iterator[Batch]:
        data = self.records(file, part)
        table = self._table(data, file.contents.columns, columns)
        if table is None or table.num_rows != part.rows:
            table = self._by_record(data, file.contents.columns, columns)
        for start in range(0, part.rows, batch):
            count = min(batch, part.rows - start)
            yield count, {name: table[name][start : start + count] for name in columns}

    def _table(self, data: bytes, names: Sequence[str], columns: Sequence[str]) -> Any:
        """Return columns of texts, None if a record has too many or too few values."""
        text = pa.string()
        try:
            return pyarrow.csv.read_csv(
                pa.BufferReader(data),
                read_options=pyarrow.csv.ReadOptions(column_names=list(names), use_threads=False),
                parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=list(columns), column_types=dict.fromkeys(columns, text), strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid:
            return None

    def _by_record(self, data: bytes, names: Sequence[str], columns: Sequence[str]) -> dict[str, list[Any]]:
        """Return columns of texts; values of a record of another length are errors."""
        table: dict[str, list[Any]] = {name: [] for name in columns}
        for record in csv.reader(io.StringIO(data.decode(errors="replace"), newline="")):
            if not record:
                continue
            error = ValueError(f"the line has {len(record)} values, and the header {len(names)}")
            values = dict(zip(names, record, strict=False)) if len(record) == len(names) else {}
            for name in columns:
                table[name].append(values.get(name, error))
        return table


class _JsonLines(_Text):
    def names(self, record: bytes) -> tuple[str, ...]:
        first = json.loads(record)
        if not isinstance(first, dict):
            raise ValueError("its first line is no JSON object")
        return tuple(first)

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int) -> Iterator[Batch]:
        lines = [line for line in self.records(file, part).split(b"\n") if line.strip()]
        for start in range(0, part.rows, batch):
            records = [_parse(line) for line in lines[start : start + batch]]
            cells = {n: [r if isinstance(r, Exception) else r.get(n) for r in records] for n in columns}
            yield len(records), cells


def _parse(line: bytes) -> dict[str, Any] | Exception:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return ValueError(f"the line is not JSON: {one_line(error)}")
    return record if isinstance(record, dict) else ValueError("the line is no JSON object")


class _Images:
    """A folder whose files are rows."""

    def scan(self, path: str, rows: int) -> Contents:
        import PIL  # noqa: F401 - an error before any work, if it is absent

        return Contents(_digest(path), len(_images(path)), (IMAGE, PATH))

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int) -> Iterator[Batch]:
        paths = _images(file.path)[part.start : part.start + part.rows]
        for start in range(0, len(paths), batch):
            own = paths[start : start + batch]
            yield len(own), {name: list(map(_decode, own)) if name == IMAGE else own for name in columns}


def _images(folder: str) -> list[str]:
    """Return the paths of the images in a folder, in the order of their names."""
    names = sorted(name for name in os.listdir(folder) if os.path.splitext(name)[1].lower() in IMAGES)
    return [os.path.join(folder, name) for name in names]


def _decode(path: str) -> Any:
    """Return an image as RGB of the shape (height, width, 3), or the error."""
    import PIL.Image

    try:
        with PIL.Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # decoders raise all kinds
        return ValueError(f"the image cannot be read: {one_line(error)}")


def _digest(path: str) -> str:
    """Return the SHA-256 of a file, or of the names and bytes of the images in a folder."""
    if not os.path.isdir(path):
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    all_digests = hashlib.sha256()
    for image in _images(path):
        all_digests.update(f"{os.path.basename(image)}\0{_digest(image)}\n".encode())
    return all_digests.hexdigest()


_FORMATS: Mapping[str, _Format] = {
    ".parquet": _Parquet(),
    ".csv": _Csv(),
    ".jsonl": _JsonLines(),
    ".ndjson": _JsonLines(),
    ".npy": _Npy(),
}


def scan(path: Path, rows: int) -> list[InputFile]:
    """Return the files of an input, in the order of their names.

    Args:
        path: a file, or a folder of files of one format, or a folder of images.
        rows: the number of rows of a part.

    Raises:
        InputError: there is no such file, or it cannot be read, or its format is unknown.
    """
    if not path.exists():
        raise InputError("there is no such input", where=str(path), remedy="name a file, or a folder of files")
    paths = sorted(p for p in path.iterdir() if p.suffix in _FORMATS) if path.is_dir() else [path]
    if not paths and _images(str(path)):
        return [_scan(path, rows)]
    if not paths:
        remedy = f"the formats are {', '.join((*_FORMATS, *sorted(IMAGES)))}"
        raise InputError("the folder has no input files", where=str(path), remedy=remedy)
    files = [_scan(p, rows) for p in paths]
    for file in files:
        if file.contents.columns != files[0].contents.columns and file.contents.rows:
            what = f"its columns are not those of {files[0].path}"
            raise InputError(what, where=file.path, remedy="put files with other columns into another folder")
    return files


def _scan(path: Path, rows: int) -> InputFile:
    form = _format_of(path)
    if form is None:
        remedy = did_you_mean(path.suffix, _FORMATS)
        raise InputError(f"{path.suffix!r} is not a format of inputs", where=str(path), remedy=remedy)
    try:
        status = os.stat(path)
        contents = form.scan(str(path), rows)
        return InputFile(str(path.absolute()), status.st_size, status.st_mtime_ns, contents)
    except ModuleNotFoundError as error:
        remedy = "pip install 'delegate-ray[images]'"
        raise InputError(f"images need {error.name}, which is not installed", where=str(path), remedy=remedy) from error
    except (OSError, ValueError, pa.ArrowException) as error:
        what = f"the input cannot be read: {one_line(error)}"
        raise InputError(
            what, where=str(path), remedy="check that it is whole, and of the format of its name"
        ) from error


def _format_of(path: Path) -> _Format | None:
    return _Images() if path.is_dir() else _FORMATS.get(path.suffix)


def parts_of(files: Sequence[InputFile], rows: int) -> list[Part]:
    """Return the parts of all files; `rows` is the number of rows of a part."""
    parts: list[Part] = []
    first = 0
    for number, file in enumerate(files):
        for index, start in enumerate(range(0, file.contents.rows, rows)):
            count = min(rows, file.contents.rows - start)
            parts.append(Part(len(parts), number, index, start, first + start, count))
        first += file.contents.rows
    return parts


def read(file: InputFile, part: Part, columns: Sequence[str], batch: int) -> Iterator[Batch]:
    """Yield the columns of a part, at most `batch` rows at a time; raises InputError if the file has changed.

    Columns have all rows of the part, and an unreadable cell is an exception in a list.
    """
    file.require_unchanged()
    count, form = 0, _format_of(Path(file.path))
    assert form is not None  # it was scanned
    try:
        for rows, table in form.read(file, part, columns, batch):
            count += rows
            yield rows, table
    except (OSError, ValueError, pa.ArrowException) as error:
        file.require_unchanged()
        what = f"rows from {part.start} on cannot be read: {one_line(error)}"
        raise InputError(what, where=file.path, remedy="check that the file is whole") from error
    file.require_unchanged()
    if count != part.rows:
        raise _changed(file.path)


def _changed(path: str) -> InputError:
    what = "the input changed during the job, or is not the file that the job has scanned"
    return InputError(what, where=path, remedy="start the job again with another output folder")
