"""Predictor: a program as a class for `ray.data.Dataset.map_batches`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from delegate.errors import ConfigError, InputError, did_you_mean
from delegate.program.dtypes import DType
from delegate_ray.runtime.columns import as_lists, write, write_numpy
from delegate_ray.runtime.rows import Columns, RowRunner, repeated
from delegate_ray.runtime.threads import load

OnBad = Literal["raise", "drop", "column"]  # what happens with a row that does not fit or fails
ERROR = "error"  # the column of messages about bad rows


class Predictor:
    """A program that maps batches of columns: dicts of NumPy arrays, or Arrow tables.

    An actor of Ray loads the program once, and actors of one node share the memory of the file, and of weights
    that XNNPACK packs (docs/reference/compile-cache.md).

    Example::

        dataset.map_batches(
            delegate_ray.Predictor,
            fn_constructor_args=("model.dlg",),
            fn_constructor_kwargs={"columns": {"x": "image"}, "keep": ["id"]},
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=8),
            zero_copy_batch=True,
        )

    Args:
        path: the program file, which each node must have.
        columns: input -> the column that it reads, or the columns of its elements. An input that is not named reads the
            column of its name. A text: the column of the only input.
        results: output -> its column in the result. None: all outputs, in columns of their names.
        keep: columns of the batch that the result has too.
        method: the name of the method. None: the method of a plain call.
        batch: the most rows of a call; if the program has a static batch, each row is a call. None: 1024 rows, or
            fewer if their inputs have more than 2^19 elements.
        on_bad: What happens to a row that does not fit or fails: "raise", "drop" it, or write a "column" `error`
            with a message, which is null for good rows. A column needs batches that are Arrow tables.
        threads: Threads of each partition. None: the actor's `num_cpus`, or outside of Ray the backend's default.
        settings: other arguments of `delegate.load`.

    Raises:
        ConfigError: the input, output or method does not exist, or rows of the program depend on each other.
        DelegateError: the file cannot be loaded.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Columns | str | None = None,
        *,
        results: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        method: str | None = None,
        batch: int | None = None,
        on_bad: OnBad = "raise",
        threads: int | None = None,
        **settings: Any,
    ) -> None:
        own = {"results": results, "keep": keep, "method": method, "batch": batch, "on_bad": on_bad, "threads": threads}
        self._arguments = path, columns, {**own, **settings}
        if "://" in os.fspath(path):
            what, remedy = "a program is a file, not a URL", "copy it to the same path on each node"
            raise ConfigError(what, where=os.fspath(path), remedy=remedy)
        if isinstance(keep, str):
            raise ConfigError(f"keep is the text {keep!r}", where="keep", remedy=f"write a list: [{keep!r}]")
        if results is not None and not isinstance(results, Mapping):
            what, remedy = f"results is a {type(results).__name__}", "write a dict of outputs and their columns"
            raise ConfigError(what, where="results", remedy=remedy)
        if batch is not None and (not isinstance(batch, int) or batch < 1):
            raise ConfigError(f"{batch!r} is no number of rows", where="batch", remedy="choose 1 or more, or None")
        if on_bad not in (policies := get_args(OnBad)):
            remedy = did_you_mean(str(on_bad), policies)
            raise ConfigError(f"{on_bad!r} is not a policy for bad rows", where="on_bad", remedy=remedy)
        self._keep, self._on_bad = list(keep), on_bad
        program = load(os.fspath(path), _cpus() if threads is None else threads, settings)
        self._runner = RowRunner(program, os.fspath(path), columns or {}, results, method, batch, 1024)
        written = [*self._keep, *(o.column for o in self._runner.outputs), *([ERROR] if on_bad == "column" else [])]
        if twice := repeated(written):
            what = f"the result would have two columns {twice!r}"
            raise ConfigError(what, where=os.fspath(path), remedy="give the output another column by `results`")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments, so that another process loads the file by itself."""
        return _create, self._arguments

    def __call__(self, batch: Any) -> Any:
        """Return the results of a batch, and the columns to keep.

        Args:
            batch: a dict of NumPy arrays, or an Arrow table; it may be read-only.

        Returns:
            A batch of the same kind.

        Raises:
            ConfigError: the batch is of another kind, or the column does not exist.
            InputError: a row does not fit or fails, and `on_bad` is "raise".
        """
        is_table = isinstance(batch, pa.Table)
        if not is_table and not isinstance(batch, Mapping):
            what = f"a batch is a {type(batch).__name__}, and must be a dict of arrays or an Arrow table"
            raise ConfigError(what, where="the batch", remedy='pass batch_format="numpy" or "pyarrow" to map_batches')
        names = batch.column_names if is_table else list(batch)
        if twice := repeated(names):
            raise ConfigError(f"there are two columns {twice!r}", where="the batch", remedy="rename one of them")
        self._runner.require_columns(names, "the batch")
        if missing := next((name for name in self._keep if name not in names), None):
            raise ConfigError(
                f"there is no column {missing!r} to keep", where="the batch", remedy="remove it from `keep`"
            )
        count = batch.num_rows if is_table else len(next(iter(batch.values())))
        table = {name: batch[name] for name in {*self._runner.columns, *self._keep}}
        results, errors = self._runner.run(table, count)
        if errors and self._on_bad == "raise":
            row = min(errors)
            raise InputError(errors[row], where=f"row {row} of a batch", remedy='fix the row, or use on_bad="drop"')
        if not is_table and self._on_bad == "column":
            what = "NumPy arrays have no nulls for bad rows"
            raise ConfigError(what, where="the batch", remedy='pass batch_format="pyarrow" to map_batches')
        kept = {name: table[name] for name in self._keep}
        good = [row for row in range(count) if row not in errors] if errors and self._on_bad == "drop" else None
        outputs = self._runner.outputs
        if not is_table:
            arrays = {name: np.asarray(array) if good is None else array[good] for name, array in kept.items()}
            return arrays | {o.column: write_numpy(r, o.cell) for o, r in zip(outputs, results, strict=True)}
        columns = kept | {o.column: write(r, o.cell) for o, r in zip(outputs, results, strict=True)}
        for o in outputs:
            if self._on_bad == "column" or o.cell.dtype is DType.bool:  # Ray has no tensors of either kind
                columns[o.column] = as_lists(columns[o.column])
        if self._on_bad == "column":
            columns[ERROR] = pa.array([errors.get(row) for row in range(count)], pa.string())
        return pa.table(columns) if good is None else pa.table(columns).take(pa.array(good, pa.int64()))


def _create(path: str, columns: Columns | str | None, arguments: Mapping[str, Any]) -> Predictor:
    return Predictor(path, columns, **arguments)


def _cpus() -> int | None:
    """Return the CPUs of the actor or task that runs this, None outside of Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().get_task_id() is None:
        return None
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
