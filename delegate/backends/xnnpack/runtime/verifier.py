"""A verifier of TFLite models before LiteRT parses them: LiteRT trusts files, and crashes on forged ones.

A valid model is as the AOT part writes it. It has one graph with the operators of a table, in an order that can run.
Each operator has inputs of the right number and kinds, and options in range. Tensors are float32, quantized integers of
8 bits, or constants. Weights are not read: the time is proportional to the number of tensors and operators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from delegate.backends.xnnpack.runtime.schema import (
    BYTES,
    FLOATS,
    INTEGERS,
    LARGEST,
    LAYERS,
    LONGS,
    NAMES,
    OPERATORS,
    OPTIONS,
    PACKING,
    RANK,
    RATIOS,
    TABLE,
    TABLES,
    TEXT,
    Field,
    Fields,
    Malformed,
    Reader,
)

FLOAT, HALF, INT, UINT8, INT8, INT4 = 0, 1, 2, 3, 9, 17  # TFLite's codes of types
_MOST_PADDING = 2**29  # of a dynamic size
_DTYPES: Mapping[int, np.dtype[Any]] = {
    FLOAT: np.dtype(np.float32),
    INT8: np.dtype(np.int8),
    UINT8: np.dtype(np.uint8),
}


class VerifiedTensor(NamedTuple):
    """A tensor of a model.

    Args:
        shape: its sizes; for a dynamic one an example.
        signature: the same with -1 for dynamic ones.
        kind: TFLite's code of its type.
        is_constant: true if the model holds its elements.
        scales: number of scales that its integers have; -1 for blocks.
        blocks: the tensor with the scales of blocks, and the number of elements per scale.
        span: the smallest and the largest scale.
        zero_point: the first.
        numbers: the bytes of all scales and of all zero points, and their axis.
        buffer: the number of the buffer that holds a constant.
        place: The buffer's place in the file: start, size.
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
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of an input or output."""
        return _DTYPES[self.kind]


class VerifiedOperand(NamedTuple):
    """An input or output of a layer.

    Args:
        tensor: the tensor, or the constant that it is decoded from.
        decoded: true if it is decoded from a constant.
        scales: The scales of a buffer's blocks, if it has blocks.
    """

    tensor: VerifiedTensor
    decoded: bool = False
    scales: VerifiedTensor | None = None


class VerifiedLayer(NamedTuple):
    """An operator whose weights XNNPACK packs.

    Args:
        name: The operator's name in the schema.
        options: its options.
        inputs: None for an omitted one.
        outputs: The operator's outputs, as tensor indices.
        padding: the amounts, if its input is padded directly before.
    """

    name: str
    options: Mapping[str, Any]
    inputs: tuple[VerifiedOperand | None, ...]
    outputs: tuple[VerifiedOperand, ...]
    padding: VerifiedTensor | None = None


class Graph(NamedTuple):
    """The inputs, outputs and layers of a model.

    Args:
        inputs, outputs: tensors.
        operators: number of operators.
        weights: places of constants that only layers read, as weights or scales of weights: (start, size) in the file.
        layers: the operators that have weights.
    """

    inputs: tuple[VerifiedTensor, ...]
    outputs: tuple[VerifiedTensor, ...]
    operators: int
    weights: tuple[tuple[int, int], ...]
    layers: tuple[VerifiedLayer, ...]


def fits(letter: str, tensor: VerifiedTensor, decoded: bool) -> bool:
    """Return true if a tensor has the kind that a letter in a row names; see `accepted.Row`."""
    if letter == "i":
        return tensor.kind == INT and tensor.is_constant
    if letter == "c":
        return tensor.kind in (INT8, UINT8) or (tensor.kind == HALF and tensor.is_constant)
    if letter == "w":
        return tensor.kind in (FLOAT, INT, INT8, INT4) and (tensor.is_constant or decoded)
    return is_value(tensor) and tensor.kind != UINT8


def agree(name: str, used: Sequence[tuple[str, VerifiedTensor]], outputs: Sequence[VerifiedTensor]) -> bool:
    """Return true if an operator computes in floats or in integers, not in both; weights alone may be integers."""
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


def _are_integers(weights: Sequence[VerifiedTensor]) -> bool:
    """Return true if weights are int8, and the following bias is int32."""
    return all(t.kind == (INT if i else INT8) and t.scales > 0 for i, t in enumerate(weights))


def _go_with_floats(weights: Sequence[VerifiedTensor]) -> bool:
    """Return true if weights are floats, or integers of 8 or 4 bits, and the following bias is in floats."""
    first, *others = weights
    quantized = first.kind in (INT8, INT4) and first.scales != 0
    return (first.kind == FLOAT or quantized) and all(t.kind == FLOAT for t in others)


def _have_ratios(name: str, used: Sequence[tuple[str, VerifiedTensor]], outputs: Sequence[VerifiedTensor]) -> bool:
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


def is_value(tensor: VerifiedTensor) -> bool:
    """Return true if a tensor holds values: floats, or integers with one scale."""
    return tensor.kind == FLOAT or (tensor.kind in (INT8, UINT8) and tensor.scales == 1)


def pads(tensor: VerifiedTensor, amounts: Sequence[int], result: VerifiedTensor) -> bool:
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


def has_blocks(tensor: VerifiedTensor, tensors: Sequence[VerifiedTensor]) -> bool:
    """Return true if a tensor has no blocks, or a float16 scale for each block."""
    if tensor.scales != -1:
        return True
    scales, size = tensor.blocks
    if not 0 <= scales < len(tensors) or not tensor.is_constant:
        return False
    rows, columns = tensor.shape
    own = tensors[scales]
    return own.kind == HALF and own.is_constant and own.shape == (rows, columns // size) and columns % size == 0


def is_new(index: int, tensors: Sequence[VerifiedTensor], available: set[int]) -> bool:
    """Return true if a tensor may be written: it holds values, and is not available yet."""
    return 0 <= index < len(tensors) and index not in available and is_value(tensors[index])


_BITS = {FLOAT: 32, HALF: 16, INT: 32, UINT8: 8, INT8: 8, INT4: 4}
_BLOCKS = 2  # of the union of details of a quantization
_ALIGNMENT = 16  # of constants, which XNNPACK reads in place
_SCALES = (2.0**-60, 2.0**60)  # of activations and weights

_MODEL: Fields = {
    "version": Field(0, "I", 0),
    "codes": Field(1, TABLES, ()),
    "graphs": Field(2, TABLES, ()),
    "buffers": Field(4, TABLES, ()),
}
_CODE: Fields = {"old": Field(0, "b", 0), "version": Field(2, "i", 1), "code": Field(3, "i", 0)}
_GRAPH: Fields = {
    "tensors": Field(0, TABLES, ()),
    "inputs": Field(1, INTEGERS, ()),
    "outputs": Field(2, INTEGERS, ()),
    "operators": Field(3, TABLES, ()),
}
_TENSOR: Fields = {
    "shape": Field(0, INTEGERS, ()),
    "type": Field(1, "b", 0),
    "buffer": Field(2, "I", 0),
    "name": Field(3, TEXT),
    "quantization": Field(4, TABLE),
    "signature": Field(7, INTEGERS),
    "has_rank": Field(8, "B", 0),
}
_QUANTIZATION: Fields = {
    "scales": Field(2, FLOATS, ()),
    "zero_points": Field(3, LONGS, ()),
    "details_type": Field(4, "B", 0),
    "details": Field(5, TABLE),
    "axis": Field(6, "i", 0),
}
_BLOCKWISE: Fields = {"scales": Field(0, "i", 0), "zero_points": Field(1, "i", 0), "size": Field(2, "i", 0)}
_OPERATOR: Fields = {
    "code": Field(0, "I", 0),
    "inputs": Field(1, INTEGERS, ()),
    "outputs": Field(2, INTEGERS, ()),
    "options_type": Field(3, "B", 0),
    "options": Field(4, TABLE),
}
_BUFFER: Fields = {"data": Field(0, BYTES)}


def verify(
    model: memoryview, inputs: Sequence[int], outputs: Sequence[int], gaps: Sequence[tuple[int, int]] = ()
) -> Graph:
    """Verify a model, and return its inputs, outputs and layers.

    Args:
        model: the whole file.
        inputs, outputs: the tensors that the compile specs name.
        gaps: ranges of weights that are written later, each (start, size), in order.

    Raises:
        Malformed: the AOT part does not write such models.
    """
    return _Verifier(model, gaps).graph(list(inputs), list(outputs))


class _Verifier:
    def __init__(self, model: memoryview, gaps: Sequence[tuple[int, int]]) -> None:
        self._reader = Reader(model, gaps)

    def graph(self, inputs: list[int], outputs: list[int]) -> Graph:
        read = self._reader.table
        model = read(self._reader.root(b"TFL3"), _MODEL)
        _require(model["version"] == 3, f"its version is {model['version']}, not 3")
        _require(len(model["graphs"]) == 1, f"it has {len(model['graphs'])} graphs, not 1")
        codes = [self._row(read(start, _CODE)) for start in model["codes"]]
        buffers = [read(start, _BUFFER)["data"] for start in model["buffers"]]
        _require(bool(buffers) and buffers[0] is None, "its first buffer is not empty")
        graph = read(model["graphs"][0], _GRAPH)
        tables = [read(start, _TENSOR) for start in graph["tensors"]]
        tensors = [self._tensor(table, buffers) for table in tables]
        _require(
            (graph["inputs"], graph["outputs"]) == (inputs, outputs),
            "its inputs or outputs differ from the declared ones",
        )
        for number, tensor in enumerate(tensors):
            _require(has_blocks(tensor, tensors), f"the blocks of tensor {number} have no matching scales")
        available = {i for i, tensor in enumerate(tensors) if tensor.is_constant}
        self._weights, self._others = set[int](), set[int]()
        self._layers = list[VerifiedLayer]()
        self._sources, self._paddings = dict[int, int](), dict[int, VerifiedTensor]()
        for index in inputs:
            _require(is_new(index, tensors, available), f"tensor {index} cannot be an input")
            available.add(index)
        for number, start in enumerate(graph["operators"]):
            self._operator(number, read(start, _OPERATOR), codes, tensors, available)
        for index in outputs:
            _require(index in available and is_value(tensors[index]), f"tensor {index}, an output, is never computed")
        scales = {tensors[i].blocks[0] for i in self._weights if tensors[i].scales == -1}
        own, others = (
            {buffers[tables[i]["buffer"]] for i in indices if tensors[i].is_constant}
            for indices in (self._weights | scales, {*self._others, *outputs})
        )
        graph_inputs, graph_outputs = (tuple(tensors[i] for i in indices) for indices in (inputs, outputs))
        return Graph(
            graph_inputs, graph_outputs, len(graph["operators"]), tuple(sorted(own - others)), tuple(self._layers)
        )

    def _row(self, code: Mapping[str, int]) -> str:
        name = NAMES.get(code["code"], "")
        _require(bool(name) and code["version"] == 1, f"operator {code['code']}, version {code['version']}, is unknown")
        _require(code["old"] == min(code["code"], 127), f"operator {name} has two codes")
        return name

    def _tensor(self, tensor: Mapping[str, Any], buffers: Sequence[tuple[int, int] | None]) -> VerifiedTensor:
        shape, signature = tuple(tensor["shape"]), tensor["signature"]
        kind = tensor["type"]
        _require(kind in _BITS, f"a tensor has the type {kind}")
        _require(len(shape) <= RANK and all(0 <= size <= LARGEST for size in shape), "a tensor has an invalid shape")
        size = -(-_BITS[kind] * math.prod(shape) // 8)
        _require(size <= LARGEST, f"a tensor of {size} bytes is too large")
        _require(tensor["buffer"] < len(buffers), f"buffer {tensor['buffer']} is missing")
        data = buffers[tensor["buffer"]]
        if data is not None:
            _require(data[1] == size and data[0] % _ALIGNMENT == 0, "the size of a constant does not match its tensor")
            _require(signature is None, "a constant has dynamic sizes")
        if signature is None:
            signature = shape
        same = len(signature) == len(shape) and all(s in (-1, d) for s, d in zip(signature, shape, strict=True))
        _require(same, "a tensor has two shapes")
        result = VerifiedTensor(
            shape, tuple(signature), kind, data is not None, buffer=tensor["buffer"], place=data or (0, 0)
        )
        return result._replace(**self._quantization(tensor["quantization"], shape, kind))

    def _quantization(self, start: int | None, shape: tuple[int, ...], kind: int) -> dict[str, Any]:
        """Return the quantization of a tensor as fields of `Tensor`."""
        if start is None:
            return {}
        _require(kind in (INT, UINT8, INT8, INT4), "a tensor of floats has scales")
        fields = self._reader.table(start, _QUANTIZATION)
        axis, scales, points = fields["axis"], fields["scales"], fields["zero_points"]
        if fields["details_type"] or fields["details"] is not None:
            has_only_blocks = (
                fields["details_type"] == _BLOCKS and fields["details"] is not None and not (len(scales) or len(points))
            )
            _require(has_only_blocks and kind == INT4 and len(shape) == 2 and axis == 0, "a tensor has invalid blocks")
            blocks = self._reader.table(fields["details"], _BLOCKWISE)
            _require(blocks["zero_points"] == -1 and blocks["size"] > 0, "a tensor has invalid blocks")
            return {"scales": -1, "blocks": (blocks["scales"], blocks["size"])}
        _require(len(points) == len(scales) > 0, "a tensor has different numbers of zero points and scales")
        least, most = (2.0**-120, 2.0**120) if kind == INT else _SCALES
        span = float(scales.min()), float(scales.max())  # NaN where one is
        _require(least <= span[0] and span[1] <= most, f"a tensor has a scale outside {least} to {most}")
        low, high = (0, 255) if kind == UINT8 else (-128, 127)
        _require(low <= points.min() and points.max() <= high, "a tensor has a zero point outside its range")
        several = len(scales) > 1
        _require(0 <= axis < max(len(shape), 1), f"the scales of a tensor are along axis {axis}")
        _require(
            not several or list(shape[axis : axis + 1]) == [len(scales)],
            "the number of scales of a tensor does not match its axis",
        )
        numbers = scales.tobytes(), points.tobytes(), axis
        return {"scales": len(scales), "span": span, "zero_point": int(points[0]), "numbers": numbers}

    def _operator(
        self,
        number: int,
        operator: Mapping[str, Any],
        codes: Sequence[str],
        tensors: Sequence[VerifiedTensor],
        available: set[int],
    ) -> None:
        """Check an operator, and add its results to the available tensors."""
        _require(operator["code"] < len(codes), f"operator {number} has no code")
        name = codes[operator["code"]]
        row, inputs, outputs = OPERATORS[name], operator["inputs"], operator["outputs"]
        letters = "x" * max(len(inputs), 1) if row.inputs == "*" else row.inputs
        place = f"operator {number}, {name},"
        least = sum(map(str.islower, letters))
        _require(least <= len(inputs) <= len(letters), f"{place} has {len(inputs)} inputs")
        for position, (letter, index) in enumerate(zip(letters, inputs, strict=False)):
            if index == -1 and letter.isupper():
                continue
            _require(index in available, f"{place} reads tensor {index} before it is computed")
            _require(
                fits(letter.lower(), tensors[index], index in self._sources),
                f"{place} does not support a tensor like {index}",
            )
            (self._weights if name in LAYERS and position == 1 else self._others).add(index)
        options = self._options(place, operator, row.options)
        _require(len(outputs) == options.get("splits", 1), f"{place} has {len(outputs)} outputs")
        for index in outputs:
            _require(is_new(index, tensors, available), f"{place} cannot write tensor {index}")
            available.add(index)
        if name == "DEQUANTIZE" and tensors[inputs[0]].is_constant:
            self._sources[outputs[0]] = inputs[0]
        if name == "PAD":
            self._paddings[outputs[0]] = tensors[inputs[1]]
            amounts = self._reader.integers(tensors[inputs[1]].place)
            _require(
                pads(tensors[inputs[0]], amounts, tensors[outputs[0]]), f"{place} has the invalid padding {amounts}"
            )
        used = [(x.lower(), tensors[i]) for x, i in zip(letters, inputs, strict=False) if i >= 0]
        _require(agree(name, used, [tensors[i] for i in outputs]), f"{place} mixes floats and integers")
        if name in PACKING and any(i >= 0 and (tensors[i].is_constant or i in self._sources) for i in inputs):
            layer_inputs = tuple(self._operand(i, tensors) if i >= 0 else None for i in inputs)
            layer_outputs = tuple(self._operand(i, tensors) for i in outputs)
            padding = next((self._paddings[i] for i in inputs if i in self._paddings), None)
            self._layers.append(VerifiedLayer(name, options, layer_inputs, layer_outputs, padding))

    def _operand(self, index: int, tensors: Sequence[VerifiedTensor]) -> VerifiedOperand:
        tensor = tensors[self._sources.get(index, index)]
        scales = tensors[tensor.blocks[0]] if tensor.scales == -1 else None
        return VerifiedOperand(tensor, index in self._sources, scales)

    def _options(self, place: str, operator: Mapping[str, Any], table: str) -> dict[str, Any]:
        code, fields = OPTIONS[table]
        _require(operator["options_type"] == code, f"{place} has options of the type {operator['options_type']}")
        _require((operator["options"] is None) == (code == 0), f"{place} has invalid options")
        if code == 0:
            return {}
        values = self._reader.table(operator["options"], fields)
        for name, option in fields.items():
            value = values[name]
            for number in value if isinstance(value, list | tuple) else (value,):
                _require(option.least <= number <= option.most, f"{place} has the invalid option {name}={number}")
        return values


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise Malformed(problem)
