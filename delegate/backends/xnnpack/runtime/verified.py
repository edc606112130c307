"""A model that has been read: its tensors and layers, and checks of their combinations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from delegate.backends.xnnpack.runtime.accepted import RATIOS

FLOAT, HALF, INT, UINT8, INT8, INT4 = 0, 1, 2, 3, 9, 17  # TFLite's codes of types
_MOST_PADDING = 2**29  # of a dynamic size
_DTYPES: Mapping[int, np.dtype[Any]] = {
    FLOAT: np.dtype(np.float32),
    INT8: np.dtype(np.int8),
    UINT8: np.dtype(np.uint8),
}


class Tensor(NamedTuple):
    """A tensor of a model.

    Args:
        shape: its sizes; for a dynamic one an example.
        signature: the same with -1 for dynamic ones.
        kind: TFLite's code of its type.
        is_constant: true if the model holds its elements.
        scales: number of scales of its integers; -1 for blocks.
        blocks: the tensor of the scales of blocks, and the number of elements per scale.
        span: the smallest and the largest scale.
        zero_point: the first.
        numbers: the bytes of all scales and of all zero points, and their axis.
        buffer: the number of the buffer that holds a constant.
        place: of the buffer in the file: start, size.
    """

    shape: tuple[int, ...]
    signature: tuple[int, ...]
    kind: int
    is_constant: bool
    scales: int = 0
    blocks: tuple[int, int] = (0, 0)
    span: tuple[float, float] = (1.0, 1.0)
    zero_point: int = 0
    numbers: tuple[bytes, bytes, int] = (b"", b"", 0)
    buffer: int = 0
    place: tuple[int, int] = (0, 0)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """NumPy's type of an input or output; None for other types."""
        return _DTYPES.get(self.kind)


class Operand(NamedTuple):
    """An input or output of a layer.

    Args:
        tensor: the tensor, or the constant that it is decoded from.
        decoded: true if it is decoded from a constant.
        scales: of its blocks, if it has blocks.
    """

    tensor: Tensor
    decoded: bool = False
    scales: Tensor | None = None


class Layer(NamedTuple):
    """An operator whose weights XNNPACK packs.

    Args:
        name: of the operator.
        options: its options.
        inputs: None for an omitted one.
        outputs: of the operator.
        padding: the amounts, if its input is padded directly before.
    """

    name: str
    options: Mapping[str, Any]
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    padding: Tensor | None = None


class Graph(NamedTuple):
    """The inputs, outputs and layers of a model.

    Args:
        inputs, outputs: tensors.
        operators: number of operators.
        weights: places of constants that only layers read, as weights or scales of weights: (start, size) in the file.
        layers: the operators that have weights.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: int
    weights: tuple[tuple[int, int], ...]
    layers: tuple[Layer, ...]


def fits(letter: str, tensor: Tensor, decoded: bool) -> bool:
    """Return true if a tensor has the kind of a letter of a row; see `accepted.Row`."""
    if letter == "i":
        return tensor.kind == INT and tensor.is_constant
    if letter == "c":
        return tensor.kind in (INT8, UINT8) or (tensor.kind == HALF and tensor.is_constant)
    if letter == "w":
        return tensor.kind in (FLOAT, INT, INT8, INT4) and (tensor.is_constant or decoded)
    return is_value(tensor) and tensor.kind != UINT8


def agree(name: str, used: Sequence[tuple[str, Tensor]], outputs: Sequence[Tensor]) -> bool:
    """Return true if an operator computes in floats or in integers, not in both. Weights alone may be integers."""
    values = [tensor.kind for letter, tensor in used if letter == "x"] + [t.kind for t in outputs]
    if name == "DEQUANTIZE":
        return outputs[0].kind == FLOAT
    if name == "QUANTIZE" and values[0] == FLOAT:
        return outputs[0].kind in (INT8, UINT8)
    if len(set(values)) > 1 or values[0] == UINT8:
        return False
    weights = [tensor for letter, tensor in used if letter == "w"]
    if values[0] == INT8:
        return _have_ratios(name, used, outputs) and _are_integers(weights)
    return not weights or _go_with_floats(weights)


def _are_integers(weights: Sequence[Tensor]) -> bool:
    """Return true if weights are int8, and the following bias is int32."""
    return all(t.kind == (INT if i else INT8) and t.scales > 0 for i, t in enumerate(weights))


def _go_with_floats(weights: Sequence[Tensor]) -> bool:
    """Return true if weights are floats, or integers of 8 or 4 bits, and the following bias is in floats."""
    first, *others = weights
    quantized = first.kind in (INT8, INT4) and first.scales != 0
    return (first.kind == FLOAT or quantized) and all(t.kind == FLOAT for t in others)


def _have_ratios(name: str, used: Sequence[tuple[str, Tensor]], outputs: Sequence[Tensor]) -> bool:
    """Return true if the kernels of an operator on int8 support its scales."""
    if name not in RATIOS or any(t.kind != INT8 for t in outputs):
        return False
    kind, least, most = RATIOS[name]
    operands = [t for letter, t in used if letter == "x"] + [t for letter, t in used if letter == "w"][:1]
    if kind == "same":
        return len({(t.span, t.zero_point) for t in (*operands, *outputs)}) == 1
    result = outputs[0].span[0]
    if kind == "each":
        ratios = [t.span[0] / result for t in operands]
    else:
        ratios = [math.prod(t.span[i] for t in operands) / result for i in (0, 1)]
    return all(least <= ratio < most for ratio in ratios)


def is_value(tensor: Tensor) -> bool:
    """Return true if a tensor holds values: floats, or integers with one scale."""
    return tensor.kind == FLOAT or (tensor.kind in (INT8, UINT8) and tensor.scales == 1)


def pads(tensor: Tensor, amounts: Sequence[int], result: Tensor) -> bool:
    """Return true if padding before and after each dimension gives a result of this shape.

    LiteRT adds sizes in 32 bits, and writes beyond the result on overflow.
    """
    rank = len(tensor.shape)
    if len(amounts) != 2 * rank or len(result.shape) != rank or min(amounts, default=0) < 0:
        return False
    rows = zip(tensor.signature, result.signature, amounts[::2], amounts[1::2], strict=True)
    return all(
        before + after <= _MOST_PADDING and (-1 in (size, total) or total == size + before + after)
        for size, total, before, after in rows
    )


def has_blocks(tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Return true if a tensor has no blocks, or a float16 scale for each block."""
    if tensor.scales != -1:
        return True
    scales, size = tensor.blocks
    if not 0 <= scales < len(tensors) or not tensor.is_constant:
        return False
    rows, columns = tensor.shape
    own = tensors[scales]
    return own.kind == HALF and own.is_constant and own.shape == (rows, columns // size) and columns % size == 0


def is_new(index: int, tensors: Sequence[Tensor], available: set[int]) -> bool:
    """Return true if a tensor may be written: it holds values, and is not available yet."""
    return 0 <= index < len(tensors) and index not in available and is_value(tensors[index])
