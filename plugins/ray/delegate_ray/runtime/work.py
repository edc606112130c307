"""Work on a job: the parts of its input, one output file each, with reading in another thread."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from queue import Full, Queue
from threading import Event, Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from delegate.common.files import replacing
from delegate.errors import ConfigError, InputError, PartitionError
from delegate_ray.runtime.columns import arrow_array, write
from delegate_ray.runtime.inputs import read
from delegate_ray.runtime.job import ROW, Finished, Job
from delegate_ray.runtime.parts import FIRST, Batch, Part
from delegate_ray.runtime.predictor import ERROR
from delegate_ray.runtime.rows import RowRunner
from delegate_ray.runtime.text_files import check_text

_AHEAD = 2  # batches that are read before they are needed
_GROUP = 1 << 23  # bytes of a row group in an output file, which are in memory until they are written
_WAIT = 0.1  # seconds until a reader looks if it is still needed


def check_first_rows(job: Job, runner: RowRunner) -> None:
    """Raise ConfigError if the first rows of the input have no good one: the program does not fit the input.

    Args:
        job: the job.
        runner: The runner of its program.

    Raises:
        ConfigError: the program does not fit, or a column cannot be kept.
    """
    if not job.rows:
        return
    seen, first = 0, ""
    for path, (count, table) in _batches(job, runner):
        _, bad = _keep(job, table, path)
        _, errors = runner.run(table, count, bad)
        if len(errors) < count:
            return
        seen, first = seen + count, first or errors[0]
        if seen >= FIRST:
            break
    what = f"the rows of the input do not fit the program: {first}"
    remedy = "choose other columns, or lower the model for this input"
    if not runner.has_rows:
        remedy += "; here a cell is a whole input, since not all inputs and outputs begin with one dynamic size or 1"
    raise ConfigError(what, where=job.files[job.parts[0].file].path, remedy=remedy)


def _batches(job: Job, runner: RowRunner) -> Iterator[tuple[str, Batch]]:
    """Yield the input file and the columns of each batch of the job."""
    for part in job.parts:
        file = job.files[part.file]
        for batch in _read(job, runner, part):
            yield file.path, batch


def _read(job: Job, runner: RowRunner, part: Part) -> Iterator[Batch]:
    """Yield the columns of a part. Columns that are kept have no limits."""
    limits = {**runner.limits, **{name: None for name in job.settings.keep if name in runner.limits}}
    return read(job.files[part.file], part, _columns(job, runner), runner.batch, limits)


def work(job: Job, runner: RowRunner, part: Part) -> Finished:
    """Write the output file of a part.

    Raises:
        InputError: a row is bad and the policy is to raise, or the input or the folder has changed.
        PartitionError: the file cannot be written, for example since the disk is full.
        BackendError: a backend failed.
    """
    path = job.output(part)
    batches = _read(job, runner, part)
    try:
        with replacing(path) as file, closing(_ahead(batches)) as ahead:
            outputs = _outputs(job, runner, part, ahead)
            records, bad = next(outputs)
            repeated = [*job.settings.keep, ERROR]  # results rarely repeat: their dictionaries would only cost time
            with pyarrow.parquet.ParquetWriter(file, records.schema, use_dictionary=repeated) as writer:
                group, size = [records], records.nbytes
                for records, errors in outputs:
                    bad += errors
                    if size >= _GROUP:
                        writer.write_table(pa.Table.from_batches(group))
                        group, size = [], 0
                    group.append(records)
                    size += records.nbytes
                writer.write_table(pa.Table.from_batches(group))
                writer.add_key_value_metadata(job.metadata(bad))
            job.require_manifest()
    except OSError as error:
        what = f"the output file cannot be written: {error.strerror or error}"
        remedy = "the files before it are complete: free space, and start the same command again"
        raise PartitionError(what, where=path, remedy=remedy) from error
    return Finished(part.number, part.rows, bad)


def _outputs(job: Job, runner: RowRunner, part: Part, batches: Iterable[Batch]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the output of each batch of a part, and the number of its bad rows."""
    first = part.first
    for count, table in batches:
        yield _batch(job, runner, count, table, first, job.files[part.file].path)
        first += count


def _columns(job: Job, runner: RowRunner) -> list[str]:
    return list(dict.fromkeys((*runner.columns, *job.settings.keep)))


def _batch(
    job: Job, runner: RowRunner, count: int, table: Mapping[str, Any], first: int, path: str
) -> tuple[pa.RecordBatch, int]:
    """Return the output of some rows of a file, and the number of bad rows; `first` is the number of the first row."""
    settings = job.settings
    kept, bad = _keep(job, table, path)
    results, errors = runner.run(table, count, bad)
    if errors and settings.on_bad == "raise":
        row = min(errors)
        remedy = "correct the row, or choose --bad-rows drop or --bad-rows column"
        raise InputError(errors[row], where=f"row {first + row} of the input", remedy=remedy)
    columns = {ROW: arrow_array(np.arange(first, first + count))} | kept
    columns |= {o.column: write(rows, o.cell) for o, rows in zip(runner.outputs, results, strict=True)}
    if settings.on_bad == "column":
        texts = [errors.get(row) for row in range(count)]
        columns[ERROR] = pa.array(texts, pa.string()) if errors else pa.nulls(count, pa.string())
    records = pa.RecordBatch.from_pydict(columns)
    if errors and settings.on_bad == "drop":
        records = records.take(pa.array([row for row in range(count) if row not in errors], pa.int64()))
    return records, len(errors)


def _keep(job: Job, table: Mapping[str, Any], path: str) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Return the columns of the input that the output has too, and the errors of rows; `path` is the input file."""
    kept, errors = dict[str, pa.Array](), dict[int, str]()
    for name in job.settings.keep:
        column = table[name]
        if isinstance(column, list):  # of a text file
            texts = [_text(cell) for cell in column]
            bad = {row: f"column {name!r}: {text}" for row, text in enumerate(texts) if isinstance(text, Exception)}
            errors = bad | errors
            kept[name] = pa.array([None if row in bad else text for row, text in enumerate(texts)], pa.string())
        elif isinstance(column, np.ndarray):
            kept[name] = _kept_array(column, name, path)
        else:
            kept[name] = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return kept, errors


def _kept_array(column: Any, name: str, path: str) -> pa.Array:
    rows = np.ascontiguousarray(column, column.dtype.newbyteorder("="))
    count = len(rows)
    if not count:  # of which Arrow makes no tensors
        rows = np.zeros((1, *rows.shape[1:]), rows.dtype)
    try:
        array = pa.FixedShapeTensorArray.from_numpy_ndarray(rows) if rows.ndim > 1 else arrow_array(rows)
        return array[:count]
    except (pa.ArrowException, ValueError) as error:
        what = f"column {name!r} cannot be kept: Arrow has no column of {rows.dtype}{list(rows.shape[1:])}"
        raise ConfigError(what, where=path, remedy="leave out --keep") from error


def _text(cell: Any) -> str | Exception | None:
    if cell is None or isinstance(cell, Exception):
        return cell
    return check_text(cell if isinstance(cell, str) else json.dumps(cell))


def _ahead(batches: Iterator[Batch]) -> Generator[Batch]:
    """Yield batches that another thread reads. An error there is raised here."""
    queue: Queue[Batch | BaseException | None] = Queue(_AHEAD)
    ended = Event()

    def put(item: Batch | BaseException | None) -> bool:
        while not ended.is_set():
            try:
                queue.put(item, timeout=_WAIT)
            except Full:
                continue
            return True
        return False

    def fill() -> None:
        try:
            if all(map(put, batches)):
                put(None)
        except BaseException as error:
            put(error)

    thread = Thread(target=fill, name="read ahead", daemon=True)
    thread.start()
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        ended.set()
        thread.join()
