"""Batching: the methods whose calls can be joined to one of more rows, and the check that their rows are independent.

Rows are joined along the first dimension, which must be one symbol for all inputs and outputs. That does not make rows
independent: a model may take the mean over the batch, or divide by its size. So the check changes one row, and requires
the same bits in all others. It also compares a row by itself with the same row in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from delegate.errors import BackendError, ConfigError, ExecutionError
from delegate.kernels.half_precision import from_bfloat16
from delegate.program import model
from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Op, Symbol
from delegate.program.model import (
    Ref,
)
from delegate.runtime.arguments import leaves, random_inputs
from delegate.runtime.backend import Array
from delegate.runtime.method import Method

_TOLERANCE = 0.01  # of the largest result: kernels for other sizes round differently


@dataclass(frozen=True, slots=True)
class Batching:
    """The joining of requests along the first dimension.

    Args:
        least, most: rows of one call.
        inputs: the leaves of the arguments that are tensors; the others are equal in all requests.
        outputs: the leaves of the result that are tensors.
    """

    least: int
    most: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def rows(self, arguments: Sequence[Any]) -> int:
        """Return the number of rows in a request."""
        return int(arguments[self.inputs[0]].shape[0])

    def key(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the sizes that requests of one call share."""
        return tuple(arguments[leaf].shape[1:] for leaf in self.inputs)

    def join(self, requests: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the leaves of one call with the rows of all requests."""
        joined = list(requests[0])
        for leaf in self.inputs:
            joined[leaf] = np.concatenate([arguments[leaf] for arguments in requests])
        return joined

    def split(self, results: Sequence[Any], rows: Sequence[int]) -> list[list[Any]]:
        """Return the leaves of each request's result, which are views."""
        split, first = [], 0
        for count in rows:
            own = list(results)
            for leaf in self.outputs:
                own[leaf] = results[leaf][first : first + count]
            split.append(own)
            first += count
        return split


def batching_of(method: Method, most: int, where: str, remedy: str) -> Batching | None:
    """Return how the requests of a method are joined; None if they cannot be.

    Args:
        method: A method of a program without states.
        most: rows of one call.
        where: the model, for messages.
        remedy: how to call it without batches, for messages.

    Raises:
        ConfigError: the rows of a batch depend on each other, or the method fails with random inputs.
    """
    definition = method.definition
    symbol = batch_symbol(definition)
    if symbol is None or most < 2 or method.written:
        return None
    inputs = tuple(leaf for leaf, i in enumerate(definition.inputs) if i.value >= 0)
    outputs = tuple(leaf for leaf, output in enumerate(definition.outputs) if isinstance(output, Ref))
    limit = most if symbol.maximum is None else min(most, symbol.maximum)
    batching = Batching(max(symbol.minimum, 1), limit, inputs, outputs)
    if batching.most < 2:
        return None
    _require_independent_rows(method, batching, where, remedy)
    return batching


def batch_symbol(method: model.MethodDefinition) -> Symbol | None:
    """Return the symbol that is the first size of all inputs and outputs, and nothing else; None without one."""
    refs = [output.index for output in method.outputs if isinstance(output, Ref)]
    shapes = [method.values[index].shape for index in (*(i.value for i in method.inputs if i.value >= 0), *refs)]
    first = shapes[0][0] if shapes and shapes[0] else None
    if not isinstance(first, Expr) or first.op is not Op.SYMBOL:
        return None
    number = int(first.value)
    others = {
        symbol for shape in shapes for size in shape[1:] if isinstance(size, Expr) for symbol in size.free_symbols()
    }
    guarded = {symbol for guard in method.guards if not _is_always_true(guard) for symbol in guard.free_symbols()}
    is_first = all(shape and shape[0] == first for shape in shapes)
    if not is_first or number in others | guarded or not all(map(_is_size_of_input, method.symbols)):
        return None
    return method.symbols[number]


def _is_size_of_input(symbol: Symbol) -> bool:
    return symbol.input >= 0 and symbol.dim >= 0


def _is_always_true(guard: Expr) -> bool:
    """Return True for n == n, which the export adds for each further input of a batch."""
    return guard.op is Op.EQ and guard.args[0] == guard.args[1]


def _require_independent_rows(method: Method, batching: Batching, where: str, remedy: str) -> None:
    """Raise ConfigError if the results of a row depend on other rows, or on their number.

    Args:
        method: The model's method.
        batching: How the method is batched.
        where, remedy: see `batching_of`.
    """
    one, other = (leaves(method.inputs, random_inputs(method.definition, seed)) for seed in (0, 1))
    count = batching.rows(one)
    try:
        expected = method.run(one)
        for changed in {0, count - 1}:
            results = method.run(_with_row_of(one, other, changed, batching))
            if not all(_same_but(expected[n], results[n], changed) for n in batching.outputs):
                what = f"the rows of a batch of {where} depend on each other"
                raise ConfigError(what, remedy=remedy)
        if batching.least == 1 < count:
            single = method.run([one[n][:1] if n in batching.inputs else one[n] for n in range(len(one))])
            outputs = [(n, o.index) for n, o in enumerate(method.definition.outputs) if isinstance(o, Ref)]
            dtypes = {n: method.definition.values[index].dtype for n, index in outputs}
            if not all(_is_near(expected[n][:1], single[n], dtype) for n, dtype in dtypes.items()):
                what = f"the results of {where} depend on the number of rows"
                raise ConfigError(what, remedy=remedy)
    except (BackendError, ExecutionError) as error:
        what = f"{where} fails with random inputs, so its rows cannot be checked: {error}"
        raise ConfigError(what, remedy=remedy) from error


def _with_row_of(arguments: Sequence[Any], other: Sequence[Any], row: int, batching: Batching) -> list[Any]:
    """Return a copy of the arguments with one row of others."""
    changed = list(arguments)
    for leaf in batching.inputs:
        changed[leaf] = arguments[leaf].copy().view()  # a view, since those may be bits of bfloat16
        changed[leaf][row] = other[leaf][row]
    return changed


def _same_but(first: Array, second: Array, row: int) -> bool:
    """Return True if all other rows have the same bits."""
    return np.delete(first, row, 0).tobytes() == np.delete(second, row, 0).tobytes()


def _is_near(first: Array, second: Array, dtype: DType) -> bool:
    """Return True if two results differ by no more than kernels for different sizes do."""
    if dtype is DType.bfloat16:
        first, second = from_bfloat16(first), from_bfloat16(second)
    wide, other = (array.astype(np.float64) for array in (first, second))
    largest = np.abs(wide).max(initial=0.0, where=np.isfinite(wide))
    return np.allclose(wide, other, rtol=0.0, atol=_TOLERANCE * largest, equal_nan=True)
