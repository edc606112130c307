"""Recurrent layers: one matrix product for the inputs of all steps, then a loop over the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE
from delegate.kernels.table import TABLE
from delegate.program.dtypes import DType

# Arguments: the products of the inputs of all steps (rows, gates * hidden), the rows of each step, the states, the
# weights from state to gates, their bias, the projection, and `out` (rows, size of the state). A cell fills `out` and
# replaces the first states by the last ones.
Cell = Callable[[Array, Sequence[slice], Sequence[Array], Array, Array | None, Array | None, Array], None]


def _lstm_cell(
    inputs: Array,
    steps: Sequence[slice],
    states: Sequence[Array],
    weight: Array,
    bias: Array | None,
    projection: Array | None,
    out: Array,
) -> None:
    """Run steps, with the gates input, forget, cell, output.

    One tanh serves all: sigmoid(x) is tanh(x / 2) / 2 + 1 / 2.
    """
    state, memory = states
    hidden = memory.shape[1]
    if bias is not None:
        inputs += bias
    factor = np.full(4 * hidden, 0.5, inputs.dtype)
    factor[2 * hidden : 3 * hidden] = 1
    offset = 1 - factor
    inputs *= factor
    transposed = (weight * factor[:, None]).T
    for count, run in groupby(steps, _count):
        h, c, squashed = state[:count], memory[:count], np.empty_like(memory[:count])
        gates = np.empty((count, 4 * hidden), inputs.dtype)
        entering, forgetting, cell, leaving = (gates[:, i * hidden : (i + 1) * hidden] for i in range(4))
        for rows in run:
            np.matmul(h, transposed, out=gates)
            np.add(gates, inputs[rows], out=gates)
            np.tanh(gates, out=gates)
            np.multiply(gates, factor, out=gates)
            np.add(gates, offset, out=gates)
            np.multiply(c, forgetting, out=c)
            np.multiply(entering, cell, out=entering)
            np.add(c, entering, out=c)
            np.tanh(c, out=squashed)
            h = out[rows]
            if projection is None:
                np.multiply(squashed, leaving, out=h)
            else:
                np.multiply(squashed, leaving, out=squashed)
                np.matmul(squashed, projection.T, out=h)
        state[:count] = h


def _gru_cell(
    inputs: Array,
    steps: Sequence[slice],
    states: Sequence[Array],
    weight: Array,
    bias: Array | None,
    projection: Array | None,
    out: Array,
) -> None:
    """Run steps, with the gates reset, update, new."""
    (state,) = states
    hidden = state.shape[1]
    transposed = weight.T
    for count, run in groupby(steps, _count):
        h, gates = state[:count], np.empty((count, 3 * hidden), inputs.dtype)
        both, new = gates[:, : 2 * hidden], gates[:, 2 * hidden :]
        reset, update = both[:, :hidden], both[:, hidden:]
        for rows in run:
            x, result = inputs[rows], out[rows]
            np.matmul(h, transposed, out=gates)
            if bias is not None:
                np.add(gates, bias, out=gates)
            np.add(both, x[:, : 2 * hidden], out=both)
            np.multiply(both, 0.5, out=both)
            np.tanh(both, out=both)
            np.multiply(both, 0.5, out=both)
            np.add(both, 0.5, out=both)
            np.multiply(new, reset, out=new)
            np.add(new, x[:, 2 * hidden :], out=new)
            np.tanh(new, out=new)
            np.subtract(h, new, out=result)
            np.multiply(result, update, out=result)
            np.add(result, new, out=result)
            h = result
        state[:count] = h


def _plain_cell(
    activation: Callable[..., Any],
    inputs: Array,
    steps: Sequence[slice],
    states: Sequence[Array],
    weight: Array,
    bias: Array | None,
    projection: Array | None,
    out: Array,
) -> None:
    (state,) = states
    if bias is not None:
        inputs += bias
    transposed = weight.T
    for count, run in groupby(steps, _count):
        h = state[:count]
        for rows in run:
            result = out[rows]
            np.matmul(h, transposed, out=result)
            np.add(result, inputs[rows], out=result)
            activation(result, out=result)
            h = result
        state[:count] = h


def _relu(x: Array, *, out: Array) -> None:
    np.maximum(x, 0, out=out)


def _count(rows: slice) -> int:
    count: int = rows.stop - rows.start
    return count


def _run_layers(
    cell: Cell,
    x: Array,
    steps: Sequence[slice],
    states: Sequence[Array],
    parameters: Sequence[Array],
    has_biases: bool,
    dropout: float,
    directions: int,
    last: Sequence[Array],
) -> Array:
    """Run all layers.

    Args:
        cell: runs one direction of one layer.
        x: (rows, features) of all steps, one step after the other.
        steps: the rows of every step, where a step with fewer rows than the step before has fewer active sequences.
        states: each of shape (layers * directions, batch, size).
        parameters: per layer and direction, weights from the input and from the state, both biases, a projection.
        has_biases: if there are biases.
        dropout: the probability of zeros between layers.
        directions: 1 or 2; the second runs backwards.
        last: receives the last states; same shapes as `states`.

    Returns:
        The last layer's states after every step, (rows, directions * size).
    """
    count = len(states[0])
    each = len(parameters) // count
    for state, final in zip(states, last, strict=True):
        np.copyto(final, state)
    for layer in range(count // directions):
        if layer and dropout:
            scale = 1 / (1 - dropout) if dropout < 1 else 0
            x = x * (TABLE.generator.random(x.shape) >= dropout) * x.dtype.type(scale)
        size = last[0].shape[2]
        outputs = np.empty((len(x), directions * size), x.dtype)
        for direction in range(directions):
            place = layer * directions + direction
            inner, recurrent, *rest = parameters[place * each : (place + 1) * each]
            inputs = x @ inner.T
            if has_biases:
                inputs += rest[0]
            part = np.empty((len(x), size), x.dtype)
            cell(
                inputs,
                steps[::-1] if direction else steps,
                [final[place] for final in last],
                recurrent,
                rest[1] if has_biases else None,
                rest[-1] if len(rest) % 2 else None,
                part,
            )
            outputs[:, direction * size : (direction + 1) * size] = part
        x = outputs
    return x


def _run_padded(
    cell: Cell, x: Array, hx: Any, parameters: Sequence[Array], has_biases: bool, layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool, *, out: tuple[Array, ...],
) -> None:  # fmt: skip
    """Run layers on x (steps, batch, features), or (batch, steps, features) -> the last layer's states; last states."""
    states = hx if isinstance(hx, list) else [hx]
    by_step, result = (x.swapaxes(0, 1), out[0].swapaxes(0, 1)) if batch_first else (x, out[0])
    count, batch, features = by_step.shape
    steps = [slice(t * batch, (t + 1) * batch) for t in range(count)]
    outputs = _run_layers(
        cell, by_step.reshape(count * batch, features), steps, states, parameters, has_biases,
        dropout if train else 0.0, 1 + bidirectional, out[1:],
    )  # fmt: skip
    np.copyto(result, outputs.reshape(result.shape))


def _run_packed(
    cell: Cell, x: Array, sizes: Array, hx: Any, parameters: Sequence[Array], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, *, out: tuple[Array, ...],
) -> None:  # fmt: skip
    """Run layers on x (rows, features) of a packed sequence; sizes (steps) of sequences per step fall."""
    states = hx if isinstance(hx, list) else [hx]
    outputs = _run_layers(
        cell, x, list(_runs(sizes)), states, parameters, has_biases, dropout if train else 0.0, 1 + bidirectional,
        out[1:],
    )  # fmt: skip
    np.copyto(out[0], outputs)


def _runs(sizes: Array) -> Iterator[slice]:
    start = 0
    for size in sizes.tolist():
        yield slice(start, start + size)
        start += size


_CELLS: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": partial(_plain_cell, np.tanh),
    "rnn_relu": partial(_plain_cell, _relu),
}
for _op, _cell in _CELLS.items():
    TABLE.kernel(f"aten.{_op}.input", dtypes=WIDE, whole=True, random=True)(partial(_run_padded, _cell))
    TABLE.kernel(f"aten.{_op}.data", dtypes=WIDE | {DType.int64}, whole=True, random=True)(partial(_run_packed, _cell))
