"""Parquet files, of which each row is decoded once if the parts are read in their order.

Reading can begin only at a row group, and other tools often write one group of a million rows, which all parts share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from delegate_ray.runtime.columns import has_numbers, is_list, is_text, leaf_type
from delegate_ray.runtime.parts import Batch, Contents, InputFile, Limits, Part, digest_of_input

_ALWAYS = 1 << 22  # values of a row group that are decoded, however few numbers a program takes
_Key = tuple[InputFile, tuple[str, ...], int, tuple[tuple[str, int | None], ...]]
_Records = tuple[pa.RecordBatch, dict[str, str]]  # rows, and the columns that are not decoded, with the reasons


class Parquet:
    """The format; it keeps the last file open, where the part that it read has ended."""

    def __init__(self) -> None:
        self._cursor: _Cursor | None = None

    def scan(self, path: str, rows: int) -> Contents:
        with pyarrow.parquet.ParquetFile(path) as parquet:
            return Contents(digest_of_input(path), parquet.metadata.num_rows, tuple(parquet.schema_arrow.names))

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int, limits: Limits) -> Iterator[Batch]:
        cursor, self._cursor = self._cursor, None  # another thread opens the file by itself
        key = file, tuple(columns), batch, tuple(sorted(limits.items()))
        if cursor is None or cursor.key != key or not cursor.is_near(part.start):
            cursor = _Cursor(key, part.start)
        for records, refused in cursor.read(part.start, part.rows):
            count = records.num_rows
            errors = {name: [ValueError(reason)] * count for name, reason in refused.items()}
            yield count, {name: errors[name] if name in errors else records.column(name) for name in columns}
        self._cursor = cursor

    def empty(self, path: str, columns: Sequence[str]) -> Mapping[str, Any]:
        with pyarrow.parquet.ParquetFile(path) as parquet:
            table = parquet.schema_arrow.empty_table()
        return {name: table.column(name).combine_chunks() for name in columns}


class _Cursor:
    """A place in an open file.

    Args:
        key: the file, its columns, the most rows of a batch, and the limits of the columns.
        start: the row to begin at; reading begins at its row group.
    """

    def __init__(self, key: _Key, start: int) -> None:
        self.key = key
        file, columns, batch, limits = key
        self._metadata = pyarrow.parquet.read_metadata(file.path)
        self._schema = self._metadata.schema.to_arrow_schema()
        limited = [name for name, most in limits if most is not None]
        texts = [name for name in limited if is_text(self._schema.field(name).type)]  # one may be in many rows
        self._parquet = pyarrow.parquet.ParquetFile(
            file.path, metadata=self._metadata, memory_map=True, read_dictionary=texts
        )
        counts = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        self._ends = np.cumsum(counts)
        group = self._group(start)
        self._row = int(self._ends[group]) - counts[group]
        self._batches = self._read_groups(range(group, len(counts)), columns, batch, dict(limits))
        self._rest: _Records | None = None  # rows from `_row` on that are decoded

    def is_near(self, row: int) -> bool:
        """Return True if the row comes next, or later in the same row group."""
        return row == self._row or (row > self._row and self._group(row) == self._group(self._row))

    def read(self, start: int, count: int) -> Iterator[_Records]:
        """Yield rows; fewer than `count` if the file ends."""
        while count:
            pair, self._rest = self._rest or next(self._batches, None), None
            if pair is None:
                return
            records, refused = pair
            own = records.slice(max(0, start - self._row), count)
            used = min(records.num_rows, start - self._row + own.num_rows)
            self._row += used
            if used < records.num_rows:
                self._rest = records.slice(used), refused
            if own.num_rows:
                start, count = start + own.num_rows, count - own.num_rows
                yield own, refused

    def _read_groups(self, groups: range, columns: Sequence[str], batch: int, limits: Limits) -> Iterator[_Records]:
        """Yield the rows of row groups, at most `batch` at a time, without the columns that are refused."""
        for group in groups:
            refused = self._refuse(group, limits)
            wanted = [name for name in columns if name not in refused]
            if wanted:
                for records in self._parquet.iter_batches(batch, row_groups=[group], columns=wanted):
                    yield records, refused
                continue
            rows = self._metadata.row_group(group).num_rows
            for start in range(0, rows, batch):
                yield pa.RecordBatch.from_pydict({"": pa.nulls(min(batch, rows - start))}), refused

    def _refuse(self, group: int, limits: Limits) -> dict[str, str]:
        """Return the columns of a row group that are not decoded, since they would be large, and the reasons."""
        metadata = self._metadata.row_group(group)
        columns = [metadata.column(i) for i in range(metadata.num_columns)]
        refused = {}
        for name, most in limits.items():
            if most is None:
                continue
            kind = self._schema.field(name).type
            values = max((c.num_values for c in columns if f"{c.path_in_schema}.".startswith(f"{name}.")), default=0)
            if not has_numbers(kind) or (is_list(kind) and is_text(leaf_type(kind))):
                refused[name] = f"the column has the type {kind}, and the program takes numbers"
            elif values > max(_ALWAYS, 8 * most * metadata.num_rows):
                what = f"its row group has {values} values in {metadata.num_rows} rows"
                refused[name] = f"{what}, and the program takes up to {most} in each"
        return refused

    def _group(self, row: int) -> int:
        return int(np.searchsorted(self._ends, row, "right"))
