"""RowRunner: a method that runs on columns of rows, many rows in a call if the method takes batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from delegate.errors import ConfigError, ExecutionError, did_you_mean
from delegate.program.expr import Expr, ExpressionBounds
from delegate.program.model import Ref
from delegate.runtime.arguments import free_inputs, leaf_names
from delegate.runtime.backend import Array
from delegate.runtime.batching import batch_symbol, batching_of
from delegate.runtime.loaded import LoadedProgram
from delegate_ray.runtime.columns import ANY, Cell, Rows, read, read_joined
from delegate_ray.runtime.parts import Limits

Columns = Mapping[str, str | Sequence[str]]  # input -> its column, or the columns of its elements
_ELEMENTS = 1 << 19  # of the inputs of a call: more do not fit the processor's caches, and rows become slower


@dataclass(frozen=True, slots=True)
class _Input:
    leaf: int
    cell: Cell
    columns: tuple[str, ...]
    is_joined: bool


@dataclass(frozen=True, slots=True)
class _Output:
    leaf: int
    cell: Cell
    column: str


class RowRunner:
    """Runs a method on columns.

    If the first size of all inputs and outputs is one dynamic size, calls take many rows. If it is always 1, each row
    is a call, with views of the columns. In all other cases an input has the whole cell of a row.

    Args:
        program: A program that a file holds.
        where: the file, for messages.
        columns: see `Columns`; an input that is not in it has the column of its name. A text: the column of the only
            input, if there is one input.
        results: output -> its column; None: all outputs, each in a column of its name.
        method: the name of the method; None: the method of a plain call.
        batch: the most rows of a call; None: `default` rows, or fewer if their inputs have more than 2^19 elements.
        default: the most rows of a call if rows are small.

    Attributes:
        program, inputs, outputs: the program, and the inputs and outputs with their columns.
        has_rows: the first dimension of all inputs and outputs is one of rows, while otherwise a cell is a whole input.
        batch: the most rows of a call, or of a step if each row is a call.

    Raises:
        ConfigError: the method cannot run row by row, or the input, output or method does not exist.
    """

    def __init__(
        self,
        program: LoadedProgram,
        where: str,
        columns: Columns | str,
        results: Mapping[str, str] | None = None,
        method: str | None = None,
        batch: int | None = 1,
        default: int = 64,
    ) -> None:
        name = program.default_method if method is None else method
        if name not in program.methods:
            raise ConfigError(f"there is no method {name!r}", where=where, remedy=did_you_mean(name, program.methods))
        if program.states:
            what = "the program has states, so its rows would depend on each other"
            raise ConfigError(what, where=where, remedy="use a program without states")
        self.program = program
        self._where, self._method = where, program.method(name)
        if self._method.written:
            what = f"method {name} writes to its inputs"
            raise ConfigError(what, where=where, remedy="return the new values instead")
        definition = self._method.definition
        inputs = [(leaf, definition.inputs[leaf]) for leaf in free_inputs(definition)]
        if number := next((i.name for _, i in inputs if i.value < 0), None):
            what = f"input {number!r} is a number, which would be the same for all rows"
            raise ConfigError(what, where=where, remedy="export the module with a tensor in its place")
        if not inputs:
            raise ConfigError(f"method {name} has no inputs, so no rows", where=where, remedy="use `delegate run`")
        if isinstance(columns, str):
            columns = {inputs[0][1].name: columns} if len(inputs) == 1 else {}
        outputs = self._outputs(results)
        symbol = batch_symbol(definition)
        values = [definition.values[i.value] for _, i in inputs] + [definition.values[v] for _, _, v, _ in outputs]
        self.has_rows = symbol is not None or all(v.shape[:1] == (1,) for v in values)
        unknown = sorted(set(columns) - {i.name for _, i in inputs})
        if unknown:
            names = [i.name for _, i in inputs]
            raise ConfigError(f"there is no input {unknown[0]!r}", where=where, remedy=did_you_mean(unknown[0], names))
        self.inputs = [self._input(leaf, i.name, i.value, columns.get(i.name, i.name)) for leaf, i in inputs]
        self.outputs = [_Output(leaf, self._cell(path, value), column) for leaf, path, value, column in outputs]
        for output in self.outputs:
            if output.cell.dtype.numpy.kind == "c":
                what = f"output {output.cell.name!r} is {output.cell.dtype.name}, which no column can have"
                raise ConfigError(what, where=where, remedy="use real numbers, for example view_as_real")
        self.batch = self._rows_of_calls(default) if batch is None else batch
        batching = batching_of(self._method, self.batch, where, "use batches of 1 row")
        self._least = 1 if symbol is None else max(symbol.minimum, 1)
        self._most = 1 if batching is None else batching.most
        self._literals = [i.literal for i in definition.inputs]

    @property
    def fields(self) -> list[pa.Field]:
        """The columns of the results."""
        return [pa.field(o.column, o.cell.type) for o in self.outputs]

    @property
    def columns(self) -> list[str]:
        """The names of the columns that it reads."""
        return list(dict.fromkeys(column for i in self.inputs for column in i.columns))

    @property
    def limits(self) -> Limits:
        """The most elements in a cell of each column that it reads; None if an input has no limit."""
        limits: dict[str, int | None] = {}
        for i in self.inputs:
            for column in i.columns:
                sizes = (1 if i.is_joined else i.cell.most, limits.get(column, 0))
                limits[column] = None if None in sizes else max(size for size in sizes if size is not None)
        return limits

    def require_columns(self, known: Sequence[str], where: str) -> None:
        """Raise ConfigError unless a table has the columns of all inputs; `where` is the table, for messages."""
        for i in self.inputs:
            for column in i.columns:
                if column not in known:
                    what = f"there is no column {column!r} for input {i.cell.name!r}"
                    remedy = f"choose the column of this input; {did_you_mean(column, known)}"
                    raise ConfigError(what, where=where, remedy=remedy)

    def run(
        self, table: Mapping[str, Any], count: int, bad: Mapping[int, str] | None = None
    ) -> tuple[list[Rows], dict[int, str]]:
        """Return the results of each output, and the errors of rows.

        Args:
            table: the columns by name: NumPy or Arrow arrays, or lists of cells.
            count: the number of rows.
            bad: errors of rows that are not run.

        Raises:
            BackendError: a backend failed, which is not an error of a row.
        """
        errors: dict[int, str] = {}
        cells: list[Rows] = []
        for i in self.inputs:
            columns = [table[column] for column in i.columns]
            rows, found = read_joined(columns, i.cell, i.columns) if i.is_joined else read(columns[0], i.cell)
            cells.append(rows)
            errors = found | errors  # the first error of a row
        errors = {**(bad or {}), **errors}
        collected = _Collected(count)
        dense = [rows.dense for rows in cells if rows.dense is not None]
        if len(dense) == len(cells) and not bad:
            self._run_rows(dense, np.arange(count), collected, errors)
        else:
            for group in _groups(cells, errors, count):
                stacked = [np.stack([_cell_of(rows, row) for row in group]) for rows in cells]
                self._run_rows(stacked, np.array(group), collected, errors)
        return [collected.rows(n, errors) for n in range(len(self.outputs))], errors

    def _run_rows(self, arrays: Sequence[Array], numbers: Array, collected: _Collected, errors: dict[int, str]) -> None:
        """Run rows whose cells are parts of one array for each input; `numbers` are the rows that these are."""
        for start in range(0, len(numbers), self._most):
            own = numbers[start : start + self._most]
            try:
                results = self._call(arrays, start, len(own))
            except ExecutionError as error:
                if len(own) == 1:
                    errors[int(own[0])] = str(error)
                    continue
                for row in range(len(own)):
                    try:
                        collected.add(own[row : row + 1], self._call(arrays, start + row, 1))
                    except ExecutionError as single:
                        errors[int(own[row])] = str(single)
            else:
                collected.add(own, results)

    def _call(self, arrays: Sequence[Array], start: int, count: int) -> list[Array]:
        """Return an array with a first dimension of rows for each output."""
        leaves: list[Any] = list(self._literals)
        for i, array in zip(self.inputs, arrays, strict=True):
            rows = array[start : start + count]
            if self.has_rows and count < self._least:  # the program takes no fewer
                rows = np.concatenate((rows, np.repeat(rows[-1:], self._least - count, 0))).view()
            leaves[i.leaf] = rows if self.has_rows else rows[0]
        results = self._method.run(leaves)
        return [results[o.leaf][:count] if self.has_rows else results[o.leaf][None] for o in self.outputs]

    def _outputs(self, results: Mapping[str, str] | None) -> list[tuple[int, str, int, str]]:
        """Return leaf, path, value and column of the requested outputs."""
        definition = self._method.definition
        paths = leaf_names(definition.out_tree)
        tensors = [
            (leaf, path, o.index)
            for leaf, (path, o) in enumerate(zip(paths, definition.outputs, strict=True))
            if isinstance(o, Ref)
        ]
        names = [path for _, path, _ in tensors]
        requested = dict(zip(names, names, strict=True)) if results is None else dict(results)
        if unknown := sorted(set(requested) - set(names)):
            remedy = did_you_mean(unknown[0], names)
            raise ConfigError(f"there is no output {unknown[0]!r}", where=self._where, remedy=remedy)
        chosen = [(leaf, path, value, requested[path]) for leaf, path, value in tensors if path in requested]
        if not chosen:
            raise ConfigError("no output is requested", where=self._where, remedy="request at least one")
        columns = [column for *_, column in chosen]
        if twice := next((c for c in columns if columns.count(c) > 1), None):
            remedy = "give each output a column of its own"
            raise ConfigError(f"two outputs have the column {twice!r}", where=self._where, remedy=remedy)
        return chosen

    def _input(self, leaf: int, name: str, value: int, columns: str | Sequence[str]) -> _Input:
        cell = self._cell(name, value)
        is_joined = not isinstance(columns, str)
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        if is_joined and cell.shape not in ((len(names),), (ANY,)):
            what = f"input {name!r} has {len(names)} columns, and takes cells of the shape {list(cell.shape)}"
            raise ConfigError(what, where=self._where, remedy="give it one column for each number of its cell")
        return _Input(leaf, cell if is_joined else replace(cell, column=names[0]), names, is_joined)

    def _rows_of_calls(self, default: int) -> int:
        """Return 2 rows at least, so that `batching_of` checks the independence of rows."""
        cells = [i.cell for i in self.inputs]
        if not all(cell.is_fixed for cell in cells):
            return default
        return min(default, max(2, _ELEMENTS // max(1, sum(cell.size for cell in cells))))

    def _cell(self, name: str, index: int) -> Cell:
        value = self._method.definition.values[index]
        shape = value.shape[1:] if self.has_rows else value.shape
        sizes = tuple(ANY if isinstance(size, Expr) else size for size in shape)
        most = ExpressionBounds(self._method.definition.symbols).largest_count(shape)
        return Cell(name, value.dtype, sizes, most=most)


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs more than once; None if there is none."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


class _Collected:
    """The results of calls, in pieces of some rows each."""

    def __init__(self, count: int) -> None:
        self._pieces: list[tuple[Array, list[Array]]] = []
        self._count = count

    def add(self, numbers: Array, results: list[Array]) -> None:
        """Add the results of some rows."""
        self._pieces.append((numbers, results))

    def rows(self, output: int, errors: Mapping[int, str]) -> Rows:
        """Return the results of one output, in the order of the rows."""
        pieces = [results[output] for _, results in self._pieces]
        shapes = {piece.shape[1:] for piece in pieces}
        numbers = np.concatenate([own for own, _ in self._pieces]) if pieces else np.arange(0)
        if not errors and len(shapes) == 1 and (np.diff(numbers) > 0).all():
            return Rows(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
        cells: list[Array | None] = [None] * self._count
        for own, results in self._pieces:
            for row, result in zip(own, results[output], strict=True):
                cells[int(row)] = np.asarray(result)
        return Rows(None, cells)


def _cell_of(rows: Rows, row: int) -> Array:
    cell = rows.cells[row] if rows.dense is None else rows.dense[row]
    assert cell is not None
    return cell


def _groups(cells: Sequence[Rows], errors: Mapping[int, str], count: int) -> list[list[int]]:
    """Return the rows without errors, in groups of equal shapes."""
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for row in range(count):
        if row not in errors:
            groups.setdefault(tuple(_cell_of(rows, row).shape for rows in cells), []).append(row)
    return list(groups.values())
