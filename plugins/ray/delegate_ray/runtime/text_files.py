"""Text files of rows: CSV and JSON lines.

A scan records the place of each part in bytes, so that any process can read a part by itself.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.csv

from delegate.plugins import one_line
from delegate_ray.runtime.parts import FIRST, Batch, Contents, InputFile, Limits, Part, digest_of_input

# A quote begins a quoted text only at the start of a value, and two quotes in such a text are one character (RFC 4180).
_VALUE = rb'(?:"(?:[^"]|"")*+"[^,]*+|(?!")[^,]*+)'
_WHOLE = re.compile(_VALUE + rb"(?:," + _VALUE + rb")*+")  # a line that ends outside of quotes
_CLOSING = re.compile(rb'(?:[^"]|"")*+"[^,]*+(?:,' + _VALUE + rb")*+")  # the same after a line that ends in quotes
_ALWAYS = 1 << 22  # values of a line of JSON that are read, however few numbers a program takes
_BLANK = frozenset({b"\n", b"\r\n", b"\r"})
_FORM = bytes.maketrans(b"E123456789", b"e000000000")  # of numbers
_LARGE = (b"e000", b"e+000", b"0" * 200)  # forms of which one is in each float of 1e309 or more
Record = tuple[int, bytes]  # its place in the file, and its bytes


class _Text(ABC):
    """A format whose records are one or more lines each."""

    headers = 0  # records before the rows

    def scan(self, path: str, rows: int) -> Contents:
        with open(path, "rb") as file:
            records = self.records(file)
            first = list(islice(records, self.headers + FIRST))
            names = self.names([record for _, record in first]) if first else ()
            places, count = [place for place, _ in first[self.headers :: rows]], len(first) - self.headers
            for place, _ in records:
                if count % rows == 0:
                    places.append(place)
                count += 1
            end = file.tell()
        return Contents(digest_of_input(path), max(count, 0), names, (*places, end))

    @abstractmethod
    def records(self, lines: Iterable[bytes]) -> Iterator[Record]:
        """Yield the records that the lines of a file form, without blank ones."""

    @abstractmethod
    def names(self, records: Sequence[bytes]) -> tuple[str, ...]:
        """Return the names of the columns from the first records; raises ValueError if there are none."""

    def empty(self, path: str, columns: Sequence[str]) -> Mapping[str, Any]:
        return {name: [] for name in columns}

    def part(self, file: InputFile, part: Part) -> bytes:
        """Return the lines of a part."""
        start, end = file.contents.places[part.index : part.index + 2]
        with open(file.path, "rb") as opened:
            opened.seek(start)
            return opened.read(end - start)


class Csv(_Text):
    """A header and records of comma-separated values, in UTF-8."""

    headers = 1

    def records(self, lines: Iterable[bytes]) -> Iterator[Record]:
        """Yield records, each of several lines if a quoted text has line ends; raises ValueError for an open quote."""
        place, number, begin, open_lines = 0, 0, 0, list[bytes]()
        for line in lines:
            number += 1
            if open_lines:
                open_lines.append(line)
                if b'"' in line and _CLOSING.fullmatch(line):
                    record = b"".join(open_lines)
                    yield place, record
                    place += len(record)
                    open_lines.clear()
                continue
            if b'"' in line:
                if not _WHOLE.fullmatch(line):
                    begin, open_lines = number, [line]
                    continue
            elif b"\r" in line and line.find(b"\r", 0, -2) >= 0:
                raise ValueError(f"line {number} has a carriage return, and lines must end with \\n or \\r\\n")
            if len(line) > 2 or line not in _BLANK:
                yield place, line
            place += len(line)
        if open_lines:
            raise ValueError(f"the quoted text that begins in line {begin} has no end")

    def names(self, records: Sequence[bytes]) -> tuple[str, ...]:
        return tuple(next(csv.reader(io.StringIO(records[0].decode("utf-8-sig"), newline=""))))

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int, limits: Limits) -> Iterator[Batch]:
        data = self.part(file, part)
        table = self._table(data, file.contents.columns, columns)
        if table is None or table.num_rows != part.rows:
            table = self._by_record(data, file.contents.columns, columns)
            if (count := len(table[columns[0]])) != part.rows:
                raise ValueError(f"{count} records in place of {part.rows}: check its quotes and line ends")
        for start in range(0, part.rows, batch):
            count = min(batch, part.rows - start)
            yield count, {name: table[name][start : start + count] for name in columns}

    def _table(self, data: bytes, names: Sequence[str], columns: Sequence[str]) -> Any:
        """Return columns of texts, None if a record has too many or too few values, or is not UTF-8."""
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
        """Return columns of texts; values that are not UTF-8, and records of another length, are errors."""
        table: dict[str, list[Any]] = {name: [] for name in columns}
        for record in _parse_csv(data):
            error = ValueError(f"the line has {len(record)} values, and the header {len(names)}")
            values = dict(zip(names, record, strict=False)) if len(record) == len(names) else {}
            for name in columns:
                table[name].append(check_text(values[name]) if name in values else error)
        return table


def _parse_csv(data: bytes) -> Iterator[list[str]]:
    """Yield the values of each record; bytes that are not UTF-8 become lone surrogates."""
    limit = csv.field_size_limit(max(1, len(data)))  # of the process, and too small for a long text
    try:
        yield from filter(None, csv.reader(io.StringIO(data.decode(errors="surrogateescape"), newline="")))
    except csv.Error as error:
        raise ValueError(f"a record cannot be read: {error}") from error
    finally:
        csv.field_size_limit(limit)


def check_text(text: str) -> str | ValueError:
    """Return a text that can be UTF-8, or an error."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return ValueError("the text is not UTF-8")
    return text


class JsonLines(_Text):
    """A JSON object in each line."""

    def records(self, lines: Iterable[bytes]) -> Iterator[Record]:
        end = 0
        for line in lines:
            end += len(line)
            if line.strip():
                yield end - len(line), line

    def names(self, records: Sequence[bytes]) -> tuple[str, ...]:
        """Return the keys of the first records, some of which may be broken."""
        parsed = [_parse(record, 4 * _ALWAYS) for record in records]
        names = dict.fromkeys(key for record in parsed if isinstance(record, dict) for key in record)
        if not names:
            raise ValueError(next((str(r) for r in parsed if isinstance(r, Exception)), "its objects have no keys"))
        return tuple(names)

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int, limits: Limits) -> Iterator[Batch]:
        lines = [line for line in self.part(file, part).split(b"\n") if line.strip()]
        sizes = [*limits.values()]
        most = None if None in sizes else _ALWAYS + 2 * sum(size or 0 for size in sizes)
        for start in range(0, part.rows, batch):
            records = [_parse(line, most) for line in lines[start : start + batch]]
            cells = {n: [r if isinstance(r, Exception) else r.get(n) for r in records] for n in columns}
            yield len(records), cells


def _parse(line: bytes, most: int | None = None) -> dict[str, Any] | Exception:
    """Return the object of a line, or the error; `most` is the most values in it, None without a limit."""
    if most is not None and len(line) > most and line.count(b",") > most:
        return ValueError(f"the line has more than {most} values")
    try:
        form = line.translate(_FORM)
        may_be_large = any(part in form for part in _LARGE)
        record = json.loads(line, parse_float=_finite if may_be_large else None)
    except OverflowError as error:
        return ValueError(str(error))
    except (ValueError, RecursionError) as error:
        return ValueError(f"the line is not JSON: {one_line(error)}")
    return record if isinstance(record, dict) else ValueError("the line is no JSON object")


def _finite(text: str) -> float:
    """Return a number of JSON; raises OverflowError in place of infinity."""
    value = float(text)
    if math.isinf(value):
        raise OverflowError(f"{text[:40]} is out of the range of float64")
    return value
