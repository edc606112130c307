"""Constants in integers, in the form that OpenVINO keeps compressed: the integers, then Convert, Subtract, Multiply.

OpenVINO fuses these operators with the product or the lookup that reads them. Signed integers have no Subtract. With
one, OpenVINO quantizes activations at run time only for unsigned integers, so those with zero points are unsigned.
Source: the CPU plugin's useDynamicQuantizationImpl, https://github.com/openvinotoolkit/openvino
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as opset

from delegate.backend.qdq import Array, Coded
from delegate_openvino.executed import INTEGERS, list_executed_layers
from delegate_openvino.settings import GROUPS, compile_model

_TYPES = {  # bits, signed
    (8, True): openvino.Type.i8,
    (8, False): openvino.Type.u8,
    (4, True): openvino.Type.i4,
    (4, False): openvino.Type.u4,
}
_OUTPUTS, _ROWS = 16, 40  # of the layer of a query
_ROUNDING, _NOISE = 1e-10, 1e-3  # parts of the mean square of its results: of sums in floats, of activations in int8


def compressed(held: Coded) -> Any:
    """Return the output of an operator that decodes a constant."""
    assert held.scale is not None
    shape, wide = list[int](), list[int]()
    for own, size in zip(held.scale.shape, held.shape, strict=True):
        shape += [own, size // own] if 1 < own < size else [size]
        wide += [own, 1] if 1 < own < size else [own]
    offset = 0 if held.symmetric else 1 << (held.bits - 1)
    value = opset.convert(_constant(held.values.astype(np.int16) + offset, shape, held.bits, offset), "f32")
    if offset:
        assert held.zero_point is not None
        zeros = _constant(held.zero_point.astype(np.int16) + offset, wide, held.bits, offset)
        value = opset.subtract(value, opset.convert(zeros, "f32"))
    value = opset.multiply(value, opset.constant(held.scale.astype(np.float32).reshape(wide)))
    if len(shape) > held.ndim:
        value = opset.reshape(value, opset.constant(np.array(held.shape, np.int64)), special_zero=False)
    return value.output(0)


def _constant(values: Array, shape: list[int], bits: int, offset: int) -> Any:
    """Return a constant of integers; two of 4 bits are in a byte, the first in the low bits."""
    numbers = values.reshape(-1).astype(np.uint8 if offset else np.int8).view(np.uint8)
    if bits == 4:
        even = np.pad(numbers & 15, (0, numbers.size % 2))
        numbers = even[0::2] | (even[1::2] << 4)
    tensor = openvino.Tensor(np.ascontiguousarray(numbers), openvino.Shape(shape), _TYPES[bits, not offset])
    return openvino.op.Constant(tensor, shared_memory=False)


def with_scales_of_rows(held: Coded) -> Coded:
    """Return a matrix with separate scales for each row: OpenVINO decodes one with fewer scales to floats."""
    assert held.scale is not None
    times = held.shape[0] // held.scale.shape[0]
    zeros = None if held.zero_point is None else held.zero_point.repeat(times, 0)
    return replace(held, scale=held.scale.repeat(times, 0), zero_point=zeros)


@cache
def storage_bits(inputs: int, block: int, bits: int, signed: bool) -> int | None:
    """Return the bits in which a linear layer stores a weight; None if OpenVINO decodes it to floats, or is wrong.

    OpenVINO 2026.4 computes wrong numbers with weights of 4 bits for an odd number of inputs, and for blocks of 48 or
    80 inputs. The same weights in 8 bits are right.

    Args:
        inputs: the number of inputs.
        block: the number of inputs that share a scale.
        bits: A weight's number of bits.
        signed: true for weights without zero points.
    """
    if not block or inputs % block:
        return None
    return next((own for own in (4, 8) if own >= bits and _is_right(inputs, block, own, signed)), None)


def _is_right(inputs: int, block: int, bits: int, signed: bool) -> bool:
    """Run a small layer for few and many rows, and return true if it reads integers and its results are right."""
    draw, most = np.random.default_rng(0), 1 << (bits - 1)
    values = draw.integers(-most, most, (_OUTPUTS, inputs)).astype(np.int8)
    scales = draw.uniform(1, 2, (_OUTPUTS, inputs // block)).astype(np.float32)
    zeros = None if signed else draw.integers(-most, most, scales.shape)
    held = Coded(values, scales, zeros, bits)
    x = opset.parameter([-1, inputs], np.float32)
    model = openvino.Model([opset.matmul(x, compressed(held), False, True)], [x])
    rows, weights = draw.normal(size=(_ROWS, inputs)).astype(np.float32), held.decoded()
    for group in (0, *GROUPS):
        properties = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": group}
        compiled = compile_model(model, "CPU", properties)
        layers = (layer for layer in list_executed_layers(compiled) if layer.kind == "FullyConnected")
        if not all(layer.precision in INTEGERS for layer in layers):
            return False
        for some in (rows[:1], rows):
            (result,) = compiled([some]).values()
            exact = some @ weights.T
            if np.square(result - exact).mean() > np.square(exact).mean() * (_NOISE if group else _ROUNDING):
                return False
    return True


def group_of_activations(inputs: int, block: int) -> int | None:
    """Return the largest number of a layer's activations that may share a range; None if OpenVINO quantizes none."""
    fitting = (g for g in GROUPS if g <= block and (block == inputs or block % g == 0))
    return max(fitting, default=None)
