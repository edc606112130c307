"""Checks a TFLite model before LiteRT parses it: LiteRT takes files for trusted, and crashes where they are forged.

What passes is a model as the AOT half writes it: one graph; the operators of its table, in an order that can run, each
with as many inputs of the kinds that it takes, and with options in range; float32, integers of 8 bits that say what
they stand for, and constants. Weights are not looked at: the time goes with the number of tensors and operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from delegate.backends.xnnpack.reader import (
    BYTES,
    FLOATS,
    INTEGERS,
    LONGS,
    TABLE,
    TABLES,
    TEXT,
    Field,
    Fields,
    Malformed,
    Reader,
)

_FLOAT, _HALF, _INT, _UINT8, _INT8, _INT4 = 0, 1, 2, 3, 9, 17  # TFLite's codes of types
_BITS = {_FLOAT: 32, _HALF: 16, _INT: 32, _UINT8: 8, _INT8: 8, _INT4: 4}
_DTYPES: Mapping[int, np.dtype[Any]] = {
    _FLOAT: np.dtype(np.float32),
    _INT8: np.dtype(np.int8),
    _UINT8: np.dtype(np.uint8),
}
_BLOCKS = 2  # of the union of details of a quantization
_RANK = 6  # the largest that XNNPACK has
_ALIGNMENT = 16  # of constants, which XNNPACK reads where they lie
_LARGEST = 2**31 - 1

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


class Option(NamedTuple):
    """A number among the options of an operator; `least` to `most` are allowed."""

    slot: int
    kind: str = "b"
    default: Any = 0
    least: float = 0
    most: float = 1


def _window(first: int) -> dict[str, Option]:
    return {n: Option(first + i, "i", 0, 1, _LARGEST) for i, n in enumerate(("stride_w", "stride_h"))}


def _dilation(first: int) -> dict[str, Option]:
    return {n: Option(first + i, "i", 1, 1, _LARGEST) for i, n in enumerate(("dilation_w", "dilation_h"))}


def _activation(slot: int) -> dict[str, Option]:
    return {"activation": Option(slot, most=3)}  # none, relu, relu_n1_to_1, relu6


_PADDING = {"padding": Option(0)}  # same, valid
_NUMBER = Option(0, "f", 0.0, -math.inf, math.inf)

# Table of options -> its number in the union, and its fields.
OPTIONS: Mapping[str, tuple[int, Mapping[str, Option]]] = {
    "": (0, {}),
    "AddOptions": (11, _activation(0)),
    "MulOptions": (21, _activation(0)),
    "SubOptions": (28, _activation(0)),
    "DivOptions": (29, _activation(0)),
    "BatchMatMulOptions": (101, {"adj_x": Option(0, "B"), "adj_y": Option(1, "B")}),
    "ConcatenationOptions": (10, {"axis": Option(0, "i", 0, -_RANK, _RANK - 1), **_activation(1)}),
    "Conv2DOptions": (1, {**_PADDING, **_window(1), **_activation(3), **_dilation(4)}),
    "DepthwiseConv2DOptions": (
        2,
        {
            **_PADDING,
            **_window(1),
            "multiplier": Option(3, "i", 0, 0, _LARGEST),
            **_activation(4),
            **_dilation(5),
        },
    ),
    "DequantizeOptions": (38, {}),
    "FullyConnectedOptions": (8, {**_activation(0), "keep_num_dims": Option(2, "B"), "at_run_time": Option(3, "B")}),
    "GeluOptions": (116, {"approximate": Option(0, "B")}),
    "LeakyReluOptions": (75, {"alpha": _NUMBER}),
    "PadOptions": (22, {}),
    "Pool2DOptions": (
        5,
        {
            **_PADDING,
            **_window(1),
            "width": Option(3, "i", 0, 1, _LARGEST),
            "height": Option(4, "i", 0, 1, _LARGEST),
            **_activation(5),
        },
    ),
    "QuantizeOptions": (89, {}),
    "ReducerOptions": (27, {"keep_dims": Option(0, "B")}),
    "ReshapeOptions": (17, {"shape": Option(0, INTEGERS, (), -1, _LARGEST)}),
    "ResizeBilinearOptions": (15, {"align": Option(2, "B"), "half_pixel": Option(3, "B")}),
    "SoftmaxOptions": (9, {"beta": _NUMBER}),
    "SplitOptions": (35, {"splits": Option(0, "i", 0, 1, _LARGEST)}),
    "StridedSliceOptions": (
        32,
        {n: Option(i, "i", 0, 0, 2**_RANK - 1) for i, n in enumerate(("begin", "end", "ellipsis", "new", "shrink"))},
    ),
    "TransposeConvOptions": (49, {**_PADDING, **_window(1), **_activation(3)}),
    "TransposeOptions": (26, {}),
}


class Row(NamedTuple):
    """An operator.

    Args:
        code: TFLite's.
        inputs: what it takes, a letter each: x float32 or int8, w a constant of these or what one was decoded to, i an
            int32 constant, c whatever can be decoded; a capital one may be left out; "*": any number of x.
        options: its table of options.
    """

    code: int
    inputs: str = "x"
    options: str = ""


OPERATORS: Mapping[str, Row] = {
    "ABS": Row(101),
    "ADD": Row(0, "xx", "AddOptions"),
    "AVERAGE_POOL_2D": Row(1, "x", "Pool2DOptions"),
    "BATCH_MATMUL": Row(126, "xx", "BatchMatMulOptions"),
    "CEIL": Row(104),
    "DEQUANTIZE": Row(6, "c", "DequantizeOptions"),
    "QUANTIZE": Row(114, "x", "QuantizeOptions"),
    "CONCATENATION": Row(2, "*", "ConcatenationOptions"),
    "CONV_2D": Row(3, "xwW", "Conv2DOptions"),
    "COS": Row(108),
    "DEPTHWISE_CONV_2D": Row(4, "xwW", "DepthwiseConv2DOptions"),
    "DIV": Row(42, "xx", "DivOptions"),
    "ELU": Row(111),
    "EXP": Row(47),
    "FLOOR": Row(8),
    "FULLY_CONNECTED": Row(9, "xwW", "FullyConnectedOptions"),
    "GELU": Row(150, "x", "GeluOptions"),
    "HARD_SWISH": Row(117),
    "LEAKY_RELU": Row(98, "x", "LeakyReluOptions"),
    "LOG": Row(73),
    "LOGISTIC": Row(14),
    "MAXIMUM": Row(55, "xx"),
    "MAX_POOL_2D": Row(17, "x", "Pool2DOptions"),
    "MEAN": Row(40, "xi", "ReducerOptions"),
    "MINIMUM": Row(57, "xx"),
    "MUL": Row(18, "xx", "MulOptions"),
    "NEG": Row(59),
    "PAD": Row(34, "xi", "PadOptions"),
    "PRELU": Row(54, "xw"),
    "REDUCE_MAX": Row(82, "xi", "ReducerOptions"),
    "REDUCE_MIN": Row(89, "xi", "ReducerOptions"),
    "RELU": Row(19),
    "RELU6": Row(21),
    "RELU_N1_TO_1": Row(20),
    "RESHAPE": Row(22, "xi", "ReshapeOptions"),
    "RESIZE_BILINEAR": Row(23, "xi", "ResizeBilinearOptions"),
    "ROUND": Row(116),
    "RSQRT": Row(76),
    "SIN": Row(66),
    "SOFTMAX": Row(25, "x", "SoftmaxOptions"),
    "SPLIT": Row(49, "ix", "SplitOptions"),
    "SQRT": Row(75),
    "SQUARE": Row(92),
    "STRIDED_SLICE": Row(45, "xiii", "StridedSliceOptions"),
    "SUB": Row(41, "xx", "SubOptions"),
    "SUM": Row(74, "xi", "ReducerOptions"),
    "TANH": Row(28),
    "TRANSPOSE": Row(39, "xi", "TransposeOptions"),
    "TRANSPOSE_CONV": Row(67, "iwxW", "TransposeConvOptions"),
}
# What operators on int8 ask of scales: of each operand over the result's, of the operands' product over the result's
# (of weights, the smallest and the largest), or the same parameters everywhere. LiteRT's own kernels end the process
# where XNNPACK's do not take others.
_RATIOS: Mapping[str, tuple[str, float, float]] = {
    **dict.fromkeys(("ADD", "SUB"), ("each", 2.0**-10, 256.0)),
    "MUL": ("product", 2.0**-16, 256.0),
    **dict.fromkeys(
        ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL"),
        ("product", 2.0**-32, 256.0),
    ),
    **dict.fromkeys(("MEAN", "SUM"), ("each", 2.0**-32, 256.0)),
    "LEAKY_RELU": ("each", 2.0**-8, 127.0),
    "QUANTIZE": ("each", 2.0**-8, 2.0**7 + 1),
    **dict.fromkeys(("ELU", "LOGISTIC", "TANH"), ("each", 0.0, math.inf)),
    **dict.fromkeys(
        (
            "CONCATENATION", "MAX_POOL_2D", "PAD", "REDUCE_MAX", "REDUCE_MIN", "RESHAPE", "RESIZE_BILINEAR", "SPLIT",
            "STRIDED_SLICE", "TRANSPOSE",
        ),
        ("same", 0.0, 0.0),
    ),
}  # fmt: skip
_SCALES = (2.0**-60, 2.0**60)  # of activations and weights
_LAYERS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})  # XNNPACK packs their second
_PACKING = _LAYERS | {"BATCH_MATMUL", "PRELU"}  # whose constants may be packed
_NAMES = {row.code: name for name, row in OPERATORS.items()}


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
        numbers: all scales, all zero points, and the axis that they lie on.
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
    numbers: tuple[Sequence[float], Sequence[int], int] = ((), (), 0)
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


def verify(model: memoryview, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
    """What a model takes and gives.

    Args:
        model: the whole file.
        inputs, outputs: the tensors that the compile specs name.

    Raises:
        Malformed: it is not as the AOT half writes models.
    """
    return _Verifier(model).graph(list(inputs), list(outputs))


class _Verifier:
    def __init__(self, model: memoryview) -> None:
        self._reader, self._size = Reader(model), len(model)

    def graph(self, inputs: list[int], outputs: list[int]) -> Graph:
        read = self._reader.table
        model = read(self._reader.root(b"TFL3"), _MODEL)
        _require(model["version"] == 3, f"it is of version {model['version']}, not 3")
        _require(len(model["graphs"]) == 1, f"it has {len(model['graphs'])} graphs, not 1")
        codes = [self._row(read(start, _CODE)) for start in model["codes"]]
        buffers = [read(start, _BUFFER)["data"] for start in model["buffers"]]
        _require(bool(buffers) and buffers[0] is None, "its first buffer is not empty")
        graph = read(model["graphs"][0], _GRAPH)
        tables = [read(start, _TENSOR) for start in graph["tensors"]]
        tensors = [self._tensor(table, buffers) for table in tables]
        _require((graph["inputs"], graph["outputs"]) == (inputs, outputs), "it takes or gives others than are named")
        for number, tensor in enumerate(tensors):
            _require(_has_blocks(tensor, tensors), f"the blocks of tensor {number} have not their scales")
        there = {i for i, tensor in enumerate(tensors) if tensor.is_constant}
        self._weights, self._others = set[int](), set[int]()
        self._layers = list[Layer]()
        self._sources, self._paddings = dict[int, int](), dict[int, Tensor]()
        for index in inputs:
            _require(_is_new(index, tensors, there), f"tensor {index} cannot be an input")
            there.add(index)
        for number, start in enumerate(graph["operators"]):
            self._operator(number, read(start, _OPERATOR), codes, tensors, there)
        for index in outputs:
            _require(index in there and _is_value(tensors[index]), f"tensor {index}, an output, is never computed")
        scales = {tensors[i].blocks[0] for i in self._weights if tensors[i].scales == -1}
        own, others = (
            {buffers[tables[i]["buffer"]] for i in found if tensors[i].is_constant}
            for found in (self._weights | scales, {*self._others, *outputs})
        )
        taken, given = (tuple(tensors[i] for i in indices) for indices in (inputs, outputs))
        return Graph(taken, given, len(graph["operators"]), tuple(sorted(own - others)), tuple(self._layers))

    def _row(self, code: Mapping[str, int]) -> str:
        name = _NAMES.get(code["code"], "")
        _require(
            bool(name) and code["version"] == 1, f"operator {code['code']} of version {code['version']} is unknown"
        )
        _require(code["old"] == min(code["code"], 127), f"operator {name} has two codes")
        return name

    def _tensor(self, tensor: Mapping[str, Any], buffers: Sequence[tuple[int, int] | None]) -> Tensor:
        shape, signature = tuple(tensor["shape"]), tensor["signature"]
        kind = tensor["type"]
        _require(kind in _BITS, f"a tensor has the type {kind}")
        _require(len(shape) <= _RANK and all(0 <= size <= _LARGEST for size in shape), "a tensor has a wrong shape")
        size = -(-_BITS[kind] * math.prod(shape) // 8)
        _require(size <= _LARGEST, f"a tensor of {size} bytes is too large")
        _require(tensor["buffer"] < len(buffers), f"buffer {tensor['buffer']} is missing")
        data = buffers[tensor["buffer"]]
        if data is not None:
            _require(data[1] == size and data[0] % _ALIGNMENT == 0, "a constant has not the size of its tensor")
            _require(signature is None, "a constant has dynamic sizes")
        if signature is None:
            signature = shape
        same = len(signature) == len(shape) and all(s in (-1, d) for s, d in zip(signature, shape, strict=True))
        _require(same, "a tensor has two shapes")
        made = Tensor(shape, tuple(signature), kind, data is not None, buffer=tensor["buffer"], place=data or (0, 0))
        return made._replace(**self._quantization(tensor["quantization"], shape, kind))

    def _quantization(self, start: int | None, shape: tuple[int, ...], kind: int) -> dict[str, Any]:
        """How the integers of a tensor stand for reals: fields of `Tensor`."""
        if start is None:
            return {}
        _require(kind in (_INT, _UINT8, _INT8, _INT4), "a tensor of floats has scales")
        found = self._reader.table(start, _QUANTIZATION)
        axis, scales, points = found["axis"], found["scales"], found["zero_points"]
        if found["details_type"] or found["details"] is not None:
            whole = found["details_type"] == _BLOCKS and found["details"] is not None and not (scales or points)
            _require(whole and kind == _INT4 and len(shape) == 2 and axis == 0, "a tensor has wrong blocks")
            blocks = self._reader.table(found["details"], _BLOCKWISE)
            _require(blocks["zero_points"] == -1 and blocks["size"] > 0, "a tensor has wrong blocks")
            return {"scales": -1, "blocks": (blocks["scales"], blocks["size"])}
        _require(len(points) == len(scales) > 0, "a tensor has not as many zero points as scales")
        least, most = (2.0**-120, 2.0**120) if kind == _INT else _SCALES
        _require(all(least <= s <= most for s in scales), f"a tensor has a scale that is not from {least} to {most}")
        low, high = (0, 255) if kind == _UINT8 else (-128, 127)
        _require(all(low <= z <= high for z in points), "a tensor has a zero point beyond its range")
        several = len(scales) > 1
        _require(0 <= axis < max(len(shape), 1), f"the scales of a tensor lie on axis {axis}")
        _require(
            not several or list(shape[axis : axis + 1]) == [len(scales)], "a tensor has not as many scales as places"
        )
        span = (min(scales), max(scales))
        return {"scales": len(scales), "span": span, "zero_point": points[0], "numbers": (scales, points, axis)}

    def _operator(
        self,
        number: int,
        operator: Mapping[str, Any],
        codes: Sequence[str],
        tensors: Sequence[Tensor],
        there: set[int],
    ) -> None:
        """Check an operator, and add what it computes to what is there."""
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
            _require(index in there, f"{place} reads tensor {index} before it is there")
            _require(
                _fits(letter.lower(), tensors[index], index in self._sources),
                f"{place} does not take such a tensor as {index}",
            )
            (self._weights if name in _LAYERS and position == 1 else self._others).add(index)
        options = self._options(place, operator, row.options)
        _require(len(outputs) == options.get("splits", 1), f"{place} has {len(outputs)} outputs")
        for index in outputs:
            _require(_is_new(index, tensors, there), f"{place} cannot write tensor {index}")
            there.add(index)
        if name == "DEQUANTIZE" and tensors[inputs[0]].is_constant:
            self._sources[outputs[0]] = inputs[0]
        if name == "PAD":
            self._paddings[outputs[0]] = tensors[inputs[1]]
        used = [(x.lower(), tensors[i]) for x, i in zip(letters, inputs, strict=False) if i >= 0]
        _require(_agree(name, used, [tensors[i] for i in outputs]), f"{place} has floats beside integers")
        if name in _PACKING and any(i >= 0 and (tensors[i].is_constant or i in self._sources) for i in inputs):
            taken = tuple(self._operand(i, tensors) if i >= 0 else None for i in inputs)
            given = tuple(self._operand(i, tensors) for i in outputs)
            padding = next((self._paddings[i] for i in inputs if i in self._paddings), None)
            self._layers.append(Layer(name, options, taken, given, padding))

    def _operand(self, index: int, tensors: Sequence[Tensor]) -> Operand:
        tensor = tensors[self._sources.get(index, index)]
        scales = tensors[tensor.blocks[0]] if tensor.scales == -1 else None
        return Operand(tensor, index in self._sources, scales)

    def _options(self, place: str, operator: Mapping[str, Any], wanted: str) -> dict[str, Any]:
        code, fields = OPTIONS[wanted]
        _require(operator["options_type"] == code, f"{place} has options of the type {operator['options_type']}")
        _require((operator["options"] is None) == (code == 0), f"{place} has wrong options")
        if code == 0:
            return {}
        known = {name: Field(o.slot, o.kind, o.default) for name, o in fields.items()}
        found = self._reader.table(operator["options"], known)
        for name, option in fields.items():
            for value in _numbers(found[name]):
                _require(option.least <= value <= option.most, f"{place} has the option {name}={value}")
        return found


def _numbers(value: Any) -> Iterator[float]:
    yield from value if isinstance(value, list | tuple) else (value,)


def _fits(letter: str, tensor: Tensor, decoded: bool) -> bool:
    if letter == "i":
        return tensor.kind == _INT and tensor.is_constant
    if letter == "c":
        return tensor.kind in (_INT8, _UINT8) or (tensor.kind == _HALF and tensor.is_constant)
    if letter == "w":
        return tensor.kind in (_FLOAT, _INT, _INT8, _INT4) and (tensor.is_constant or decoded)
    return _is_value(tensor) and tensor.kind != _UINT8


def _agree(name: str, used: Sequence[tuple[str, Tensor]], outputs: Sequence[Tensor]) -> bool:
    """Whether an operator computes in floats or in integers, not in both; the latter may be in its weights alone."""
    values = [tensor.kind for letter, tensor in used if letter == "x"] + [t.kind for t in outputs]
    if name == "DEQUANTIZE":
        return outputs[0].kind == _FLOAT
    if name == "QUANTIZE" and values[0] == _FLOAT:
        return outputs[0].kind in (_INT8, _UINT8)
    if len(set(values)) > 1 or values[0] == _UINT8:
        return False
    weights = [tensor for letter, tensor in used if letter == "w"]
    if values[0] == _INT8:
        return _have_ratios(name, used, outputs) and _are_integers(weights)
    return not weights or _go_with_floats(weights)


def _are_integers(weights: Sequence[Tensor]) -> bool:
    """Whether weights are int8, and the bias behind them int32."""
    return all(t.kind == (_INT if i else _INT8) and t.scales > 0 for i, t in enumerate(weights))


def _go_with_floats(weights: Sequence[Tensor]) -> bool:
    """Whether weights are floats, or integers of 8 or 4 bits, and the bias behind them floats."""
    first, *others = weights
    quantized = first.kind in (_INT8, _INT4) and first.scales != 0
    return (first.kind == _FLOAT or quantized) and all(t.kind == _FLOAT for t in others)


def _have_ratios(name: str, used: Sequence[tuple[str, Tensor]], outputs: Sequence[Tensor]) -> bool:
    """Whether the scales of an operator on int8 are such as its kernels take."""
    if name not in _RATIOS or any(t.kind != _INT8 for t in outputs):
        return False
    kind, least, most = _RATIOS[name]
    operands = [t for letter, t in used if letter == "x"] + [t for letter, t in used if letter == "w"][:1]
    if kind == "same":
        return len({(t.span, t.zero_point) for t in (*operands, *outputs)}) == 1
    result = outputs[0].span[0]
    if kind == "each":
        ratios = [t.span[0] / result for t in operands]
    else:
        ratios = [math.prod(t.span[i] for t in operands) / result for i in (0, 1)]
    return all(least <= ratio < most for ratio in ratios)


def _is_value(tensor: Tensor) -> bool:
    """Whether a tensor holds what is computed: floats, or integers with the one scale that they stand for."""
    return tensor.kind == _FLOAT or (tensor.kind in (_INT8, _UINT8) and tensor.scales == 1)


def _has_blocks(tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether the scales of a tensor's blocks are there, a float16 for each."""
    if tensor.scales != -1:
        return True
    scales, size = tensor.blocks
    if not 0 <= scales < len(tensors) or not tensor.is_constant:
        return False
    rows, columns = tensor.shape
    own = tensors[scales]
    return own.kind == _HALF and own.is_constant and own.shape == (rows, columns // size) and columns % size == 0


def _is_new(index: int, tensors: Sequence[Tensor], there: set[int]) -> bool:
    return 0 <= index < len(tensors) and index not in there and _is_value(tensors[index])


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Malformed(otherwise)
