"""The tables of a TFLite file, which a reader of untrusted flatbuffers checks, and the operators that a model may hold.

LiteRT follows the offsets of a model without checks. Here every offset is checked, and a table with another field than
the verifier lists is rejected. The operators, with their operands, options and scales, are those that the AOT part
writes.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from delegate.program.raw import array_over

# The kind of a field: a scalar by its code in `struct`, or one of these.
INTEGERS = "integers"  # a vector of int32, as a list
LONGS = "longs"  # a vector of int64, as an array: there may be many
FLOATS = "floats"  # a vector of float32, likewise
BYTES = "bytes"  # a vector of bytes: its start and length; the bytes are not read
TEXT = "text"  # likewise
TABLE = "table"  # its start
TABLES = "tables"  # the start of each


_WIDTHS = {BYTES: 1, TEXT: 1, LONGS: 8}
_NUMBERS = {INTEGERS: "<i4", LONGS: "<i8", FLOATS: "<f4"}


class Field(NamedTuple):
    """A field of a table.

    Args:
        slot: its number.
        kind: The kind of value that the field has.
        default: its value if it is omitted.
        least, most: for an option of an operator, the limits of its numbers.
    """

    slot: int
    kind: str
    default: Any = None
    least: float = -math.inf
    most: float = math.inf


Fields = Mapping[str, Field]


class Malformed(ValueError):
    """Bytes that are not a flatbuffer of the expected tables."""


class Reader:
    """The tables of a flatbuffer.

    Args:
        data: the whole buffer.
        gaps: ranges of missing bytes, each (start, size), in order. They are not read, so they can only be content in
            vectors of bytes.

    Raises:
        Malformed: The file is malformed; the message has what is wrong, and where.
    """

    def __init__(self, data: memoryview, gaps: Sequence[tuple[int, int]] = ()) -> None:
        self._data = data
        self._gaps = [(start, start + size) for start, size in gaps if size]
        self._left = len(data)  # bytes of vectors that may still be read: vectors may overlap to this limit

    def root(self, identifier: bytes) -> int:
        """Return the start of the root table of a buffer with this identifier."""
        if bytes(self._data[4:8]) != identifier:
            raise Malformed(f"it does not begin like a {identifier.decode()} file")
        return self._offset(0)

    def table(self, start: int, fields: Fields) -> dict[str, Any]:
        """Return the fields of a table by name; raise Malformed also for a field that is not in `fields`."""
        vtable = start - self._scalar("i", start)
        size, length = self._scalar("H", vtable), self._scalar("H", vtable + 2)
        if size < 4 or size % 2 or vtable % 2 or length < 4:
            raise Malformed(f"the table at {start} has an invalid list of fields")
        self._need(vtable, size)
        self._need(start, length)
        places = struct.unpack_from(f"<{(size - 4) // 2}H", self._data, vtable + 4)
        values, count = {}, 0
        for name, (slot, kind, default, *_) in fields.items():
            place = places[slot] if slot < len(places) else 0
            if place:
                count += 1
                width = struct.calcsize(kind) if len(kind) == 1 else 4
                if not 4 <= place <= length - width:
                    raise Malformed(f"{name} of the table at {start} is beyond its end")
                values[name] = self._value(kind, start + place)
            else:
                values[name] = default
        if count != len(places) - places.count(0):
            raise Malformed(f"the table at {start} has unknown fields")
        return values

    def _value(self, kind: str, start: int) -> Any:
        if len(kind) == 1:
            return self._scalar(kind, start)
        target = self._offset(start)
        if kind == TABLE:
            return target
        count = self._scalar("I", target)
        first, width = target + 4, _WIDTHS.get(kind, 4)
        if kind == BYTES:
            self._within(first, count)
            return first, count
        self._need(first, count * width + (kind == TEXT))
        if kind == TEXT:
            if self._data[first + count]:
                raise Malformed(f"the text at {target} has no end")
            return first, count
        self._left -= count * width
        if self._left < 0:
            raise Malformed("its vectors overlap too often")
        if first % width:
            raise Malformed(f"the vector at {target} is not aligned")
        if kind == TABLES:
            return [self._offset(first + 4 * i) for i in range(count)]
        numbers = array_over(self._data, np.dtype(_NUMBERS[kind]), (count,), first)
        return numbers.tolist() if kind == INTEGERS else numbers

    def integers(self, place: tuple[int, int]) -> list[int]:
        """Return the int32 content of a byte vector, which is located by its start and length."""
        self._need(*place)
        numbers: list[int] = array_over(self._data, np.dtype("<i4"), (place[1] // 4,), place[0]).tolist()
        return numbers

    def _offset(self, start: int) -> int:
        """Return the target of a reference, which has at least 4 bytes."""
        target: int = start + self._scalar("I", start)
        if target % 4 or target == start:
            raise Malformed(f"the reference at {start} is out of range")
        self._need(target, 4)
        return target

    def _scalar(self, code: str, start: int) -> Any:
        width = struct.calcsize(code)
        self._need(start, width)
        if start % width:
            raise Malformed(f"a number at {start} is not aligned")
        return struct.unpack_from("<" + code, self._data, start)[0]

    def _need(self, start: int, size: int) -> None:
        self._within(start, size)
        before = bisect_left(self._gaps, (start + size,))
        if before and self._gaps[before - 1][1] > start:
            raise Malformed(f"{size} bytes at {start} overlap the place of a constant")

    def _within(self, start: int, size: int) -> None:
        if start < 0 or start + size > len(self._data):
            raise Malformed(f"{size} bytes at {start} are beyond its end")


RANK = 6  # the largest rank in XNNPACK
LARGEST = 2**31 - 1  # of sizes, and of bytes of a tensor


def _sizes(first: int, *names: str, default: int = 0) -> dict[str, Field]:
    """Return consecutive fields that are sizes of at least 1."""
    return {name: Field(first + i, "i", default, 1, LARGEST) for i, name in enumerate(names)}


def _strides(first: int) -> dict[str, Field]:
    return _sizes(first, "stride_w", "stride_h")


def _dilation(first: int) -> dict[str, Field]:
    return _sizes(first, "dilation_w", "dilation_h", default=1)


def _flag(slot: int, kind: str = "B") -> Field:
    return Field(slot, kind, 0, 0, 1)


def _activation(slot: int) -> dict[str, Field]:
    return {"activation": Field(slot, "b", 0, 0, 3)}  # none, relu, relu_n1_to_1, relu6


_PADDING = {"padding": _flag(0, "b")}  # same, valid
_NUMBER = Field(0, "f", 0.0)

# Table of options -> its number in the union, and its fields.
OPTIONS: Mapping[str, tuple[int, Fields]] = {
    "": (0, {}),
    "AddOptions": (11, _activation(0)),
    "MulOptions": (21, _activation(0)),
    "SubOptions": (28, _activation(0)),
    "DivOptions": (29, _activation(0)),
    "BatchMatMulOptions": (101, {"adj_x": _flag(0), "adj_y": _flag(1)}),
    "ConcatenationOptions": (10, {"axis": Field(0, "i", 0, -RANK, RANK - 1), **_activation(1)}),
    "Conv2DOptions": (1, {**_PADDING, **_strides(1), **_activation(3), **_dilation(4)}),
    "DepthwiseConv2DOptions": (
        2,
        {
            **_PADDING,
            **_strides(1),
            "multiplier": Field(3, "i", 0, 0, LARGEST),
            **_activation(4),
            **_dilation(5),
        },
    ),
    "DequantizeOptions": (38, {}),
    "FullyConnectedOptions": (8, {**_activation(0), "keep_num_dims": _flag(2), "at_run_time": _flag(3)}),
    "GeluOptions": (116, {"approximate": _flag(0)}),
    "LeakyReluOptions": (75, {"alpha": _NUMBER}),
    "PadOptions": (22, {}),
    "Pool2DOptions": (
        5,
        {
            **_PADDING,
            **_strides(1),
            **_sizes(3, "width", "height"),
            **_activation(5),
        },
    ),
    "QuantizeOptions": (89, {}),
    "ReducerOptions": (27, {"keep_dims": _flag(0)}),
    "ReshapeOptions": (17, {"shape": Field(0, INTEGERS, (), -1, LARGEST)}),
    "ResizeBilinearOptions": (15, {"align": _flag(2), "half_pixel": _flag(3)}),
    "SoftmaxOptions": (9, {"beta": _NUMBER}),
    "SplitOptions": (35, _sizes(0, "splits")),
    "StridedSliceOptions": (
        32,
        {n: Field(i, "i", 0, 0, 2**RANK - 1) for i, n in enumerate(("begin", "end", "ellipsis", "new", "shrink"))},
    ),
    "TransposeConvOptions": (49, {**_PADDING, **_strides(1), **_activation(3)}),
    "TransposeOptions": (26, {}),
}


class SchemaRow(NamedTuple):
    """An operator.

    Args:
        code: TFLite's.
        inputs: a letter for each input: x float32 or int8, w a constant of these types or a decoded constant, i an
            int32 constant, c any value that can be decoded. A capital letter is optional; "*" is any number of x.
        options: its table of options.
    """

    code: int
    inputs: str = "x"
    options: str = ""


OPERATORS: Mapping[str, SchemaRow] = {
    "ABS": SchemaRow(101),
    "ADD": SchemaRow(0, "xx", "AddOptions"),
    "AVERAGE_POOL_2D": SchemaRow(1, "x", "Pool2DOptions"),
    "BATCH_MATMUL": SchemaRow(126, "xx", "BatchMatMulOptions"),
    "CEIL": SchemaRow(104),
    "DEQUANTIZE": SchemaRow(6, "c", "DequantizeOptions"),
    "QUANTIZE": SchemaRow(114, "x", "QuantizeOptions"),
    "CONCATENATION": SchemaRow(2, "*", "ConcatenationOptions"),
    "CONV_2D": SchemaRow(3, "xwW", "Conv2DOptions"),
    "COS": SchemaRow(108),
    "DEPTHWISE_CONV_2D": SchemaRow(4, "xwW", "DepthwiseConv2DOptions"),
    "DIV": SchemaRow(42, "xx", "DivOptions"),
    "ELU": SchemaRow(111),
    "EXP": SchemaRow(47),
    "FLOOR": SchemaRow(8),
    "FULLY_CONNECTED": SchemaRow(9, "xwW", "FullyConnectedOptions"),
    "GELU": SchemaRow(150, "x", "GeluOptions"),
    "HARD_SWISH": SchemaRow(117),
    "LEAKY_RELU": SchemaRow(98, "x", "LeakyReluOptions"),
    "LOG": SchemaRow(73),
    "LOGISTIC": SchemaRow(14),
    "MAXIMUM": SchemaRow(55, "xx"),
    "MAX_POOL_2D": SchemaRow(17, "x", "Pool2DOptions"),
    "MEAN": SchemaRow(40, "xi", "ReducerOptions"),
    "MINIMUM": SchemaRow(57, "xx"),
    "MUL": SchemaRow(18, "xx", "MulOptions"),
    "NEG": SchemaRow(59),
    "PAD": SchemaRow(34, "xi", "PadOptions"),
    "PRELU": SchemaRow(54, "xw"),
    "REDUCE_MAX": SchemaRow(82, "xi", "ReducerOptions"),
    "REDUCE_MIN": SchemaRow(89, "xi", "ReducerOptions"),
    "RELU": SchemaRow(19),
    "RELU6": SchemaRow(21),
    "RELU_N1_TO_1": SchemaRow(20),
    "RESHAPE": SchemaRow(22, "xi", "ReshapeOptions"),
    "RESIZE_BILINEAR": SchemaRow(23, "xi", "ResizeBilinearOptions"),
    "ROUND": SchemaRow(116),
    "RSQRT": SchemaRow(76),
    "SIN": SchemaRow(66),
    "SOFTMAX": SchemaRow(25, "x", "SoftmaxOptions"),
    "SPLIT": SchemaRow(49, "ix", "SplitOptions"),
    "SQRT": SchemaRow(75),
    "SQUARE": SchemaRow(92),
    "STRIDED_SLICE": SchemaRow(45, "xiii", "StridedSliceOptions"),
    "SUB": SchemaRow(41, "xx", "SubOptions"),
    "SUM": SchemaRow(74, "xi", "ReducerOptions"),
    "TANH": SchemaRow(28),
    "TRANSPOSE": SchemaRow(39, "xi", "TransposeOptions"),
    "TRANSPOSE_CONV": SchemaRow(67, "iwxW", "TransposeConvOptions"),
}
# Limits on the scales of operators on int8: of each operand over the result's, of the operands' product over the
# result's (for weights, the smallest and the largest), or the same parameters everywhere. If XNNPACK's kernels reject
# other scales, LiteRT's own kernels abort the process.
RATIOS: Mapping[str, tuple[str, float, float]] = {
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
LAYERS = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"}
)  # XNNPACK packs their second input
PACKING = LAYERS | {"BATCH_MATMUL", "PRELU"}  # operators with constants that may be packed
NAMES = {row.code: name for name, row in OPERATORS.items()}
