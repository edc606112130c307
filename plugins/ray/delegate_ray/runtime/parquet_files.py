"""Parquet files, of which each row is decoded once if the parts are read in their order.

Reading can begin only at a row group. Other tools often write one group of a million rows, which all parts share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from delegate_ray.runtime.parts import Batch, Contents, InputFile, Part, digest_of_input


class Parquet:
    """The format; it keeps the last file open, where the part that it read has ended."""

    def __init__(self) -> None:
        self._cursor: _Cursor | None = None

    def scan(self, path: str, rows: int) -> Contents:
        with pyarrow.parquet.ParquetFile(path) as parquet:
            return Contents(digest_of_input(path), parquet.metadata.num_rows, tuple(parquet.schema_arrow.names))

    def read(self, file: InputFile, part: Part, columns: Sequence[str], batch: int) -> Iterator[Batch]:
        cursor, self._cursor = self._cursor, None  # another thread opens the file by itself
        key = file, tuple(columns), batch
        if cursor is None or cursor.key != key or not cursor.is_near(part.start):
            cursor = _Cursor(key, part.start)
        for records in cursor.read(part.start, part.rows):
            yield records.num_rows, {name: records.column(name) for name in columns}
        self._cursor = cursor


class _Cursor:
    """A place in an open file.

    Args:
        key: the file, its columns, and the most rows of a batch.
        start: the row to begin at; reading begins at its row group.
    """

    def __init__(self, key: tuple[InputFile, tuple[str, ...], int], start: int) -> None:
        self.key = key
        file, columns, batch = key
        parquet = pyarrow.parquet.ParquetFile(file.path, memory_map=True)
        counts = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
        self._ends = np.cumsum(counts)
        group = self._group(start)
        self._row = int(self._ends[group]) - counts[group]
        groups = list(range(group, len(counts)))
        self._batches = parquet.iter_batches(batch, row_groups=groups, columns=list(columns))
        self._rest: pa.RecordBatch | None = None  # rows from `_row` on that are decoded

    def is_near(self, row: int) -> bool:
        """Return True if the row comes next, or later in the same row group."""
        return row == self._row or (row > self._row and self._group(row) == self._group(self._row))

    def read(self, start: int, count: int) -> Iterator[pa.RecordBatch]:
        """Yield rows; fewer than `count` if the file ends."""
        while count:
            records, self._rest = self._rest or next(self._batches, None), None
            if records is None:
                return
            own = records.slice(max(0, start - self._row), count)
            used = min(records.num_rows, start - self._row + own.num_rows)
            self._row += used
            if used < records.num_rows:
                self._rest = records.slice(used)
            if own.num_rows:
                start, count = start + own.num_rows, count - own.num_rows
                yield own

    def _group(self, row: int) -> int:
        return int(np.searchsorted(self._ends, row, "right"))
