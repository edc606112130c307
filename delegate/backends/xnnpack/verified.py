"""A model that has been read: its tensors, its layers, and what of them goes together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from delegate.backends.xnnpack.accepted import RATIOS

FLOAT, HALF, INT, UINT8, INT8, INT4 = 0, 1, 2, 3, 9, 17  # TFLite's codes of types
_MOST_PADDING = 2**29  # beside a size that is dynamic
_DTYPES: Mapping[int, np.dtype[Any]] = {
    FLOAT: np.dtype(np.float32),
    INT8: np.dtype(np.int8),
    UINT8: np.dtype(np.uint8),
}


class Tensor(NamedTuple):
    """A tensor of a model.

    Args:
        shape: its sizes; of a dynamic one an example.
        signature: the same with -1 for dynamic ones.
        kind: TFLite's code of its type.
        is_constant: whether the model holds its elements.
        scales: how many scales its integers have; -1 for blocks.
        blocks: of these, the tensor of the scales, and how many elements share one.
        span: the smallest and the largest scale.
        zero_point: the first.
        numbers: the bytes of all scales and of all zero points, and the axis that they lie on.
        buffer: the number of the buffer that holds a constant.
        place: where that lies in the file: start, size.
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
        """NumPy's type of one that is given or taken; None for other types."""
        return _DTYPES.get(self.kind)


class Operand(NamedTuple):
    """What a layer takes or gives.

    Args:
        tensor: itself, or the constant that it is decoded from.
        decoded: whether it is.
        scales: of its blocks, where it has these.
    """

    tensor: Tensor
    decoded: bool = False
    scales: Tensor | None = None


class Layer(NamedTuple):
    """An operator whose weights XNNPACK packs.

    Args:
        name: of the operator.
        options: its options.
        inputs: None for one that is left out.
        outputs: what it gives.
        padding: where what it takes is padded right before, by how much.
    """

    name: str
    options: Mapping[str, Any]
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    padding: Tensor | None = None


class Graph(NamedTuple):
    """What a model takes and gives.

    Args:
        inputs, outputs: tensors.
        operators: how many it has.
        weights: where constants lie that layers alone read, as their weights or the scales of these: (start, size) in
            the file.
        layers: the operators that have weights.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: int
    weights: tuple[tuple[int, int], ...]
    layers: tuple[Layer, ...]


def fits(letter: str, tensor: Tensor, decoded: bool) -> bool:
    """Whether a tensor is of the kind that a letter of a row stands for; see `accepted.Row`."""
    if letter == "i":
        return tensor.kind == INT and tensor.is_constant
    if letter == "c":
        return tensor.kind in (INT8, UINT8) or (tensor.kind == HALF and tensor.is_constant)
    if letter == "w":
        return tensor.kind in (FLOAT, INT, INT8, INT4) and (tensor.is_constant or decoded)
    return is_value(tensor) and tensor.kind != UINT8


def agree(name: str, used: Sequence[tuple[str, Tensor]], outputs: Sequence[Tensor]) -> bool:
    """Whether an operator computes in floats or in integers, not in both; the latter may be in its weights alone."""
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
    """Whether weights are int8, and the bias behind them int32."""
    return all(t.kind == (INT if i else INT8) and t.scales > 0 for i, t in enumerate(weights))


def _go_with_floats(weights: Sequence[Tensor]) -> bool:
    """Whether weights are floats, or integers of 8 or 4 bits, and the bias behind them floats."""
    first, *others = weights
    quantized = first.kind in (INT8, INT4) and first.scales != 0
    return (first.kind == FLOAT or quantized) and all(t.kind == FLOAT for t in others)


def _have_ratios(name: str, used: Sequence[tuple[str, Tensor]], outputs: Sequence[Tensor]) -> bool:
    """Whether the scales of an operator on int8 are such as its kernels take."""
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
    """Whether a tensor holds what is computed: floats, or integers with the one scale that they stand for."""
    return tensor.kind == FLOAT or (tensor.kind in (INT8, UINT8) and tensor.scales == 1)


def pads(tensor: Tensor, amounts: Sequence[int], result: Tensor) -> bool:
    """Whether a tensor that is padded before and behind each dimension becomes such a result.

    LiteRT adds them up in 32 bits, and writes beyond the result where that is not enough.
    """
    rank = len(tensor.shape)
    if len(amounts) != 2 * rank or len(result.shape) != rank or min(amounts, default=0) < 0:
        return False
    rows = zip(tensor.signature, result.signature, amounts[::2], amounts[1::2], strict=True)
    return all(
        before + behind <= _MOST_PADDING and (-1 in (size, made) or made == size + before + behind)
        for size, made, before, behind in rows
    )


def has_blocks(tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether the scales of a tensor's blocks are there, a float16 for each."""
    if tensor.scales != -1:
        return True
    scales, size = tensor.blocks
    if not 0 <= scales < len(tensors) or not tensor.is_constant:
        return False
    rows, columns = tensor.shape
    own = tensors[scales]
    return own.kind == HALF and own.is_constant and own.shape == (rows, columns // size) and columns % size == 0


def is_new(index: int, tensors: Sequence[Tensor], there: set[int]) -> bool:
    """Whether a tensor may be written: it holds what is computed, and is not there yet."""
    return 0 <= index < len(tensors) and index not in there and is_value(tensors[index])
