"""Checks of numbers that an ONNX model cannot hold.

ONNX Runtime and QNN store biases of layers on integers in 32 bits, even if they exceed 32 bits. In ONNX, zero points
have the type of the values, and the exporter truncates them to it. Torch's ONNX exporter writes the numbers among the
arguments of an operator in float32, like ONNX's attributes. On float64, the relative error of the result is then 3e-8,
or a comparison with the number itself is false.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from delegate.backends.region import Region
from delegate.edge.node import arguments, op_name, tensor, tensors
from delegate.verdict import YES, Reason, Verdict, no

_LAYERS = {  # operator -> its arguments: operand, weight, bias
    "aten.addmm.default": ("mat1", "mat2", "self"),
    "aten.convolution.default": ("input", "weight", "bias"),
    "aten.linear.default": ("input", "weight", "bias"),
}
_SCALES = {
    "quantized_decomposed.dequantize_per_channel.default": "scales",
    "quantized_decomposed.dequantize_per_tensor.default": "scale",
    "quantized_decomposed.dequantize_per_tensor.tensor": "scale",
}
_MOST = 2**31 - 1


def too_large(region: Region) -> dict[str, str]:
    """Return the layers whose bias exceeds 32 bits in steps of their operands' scales, with reasons.

    This happens if an operand was almost 0 in calibration.
    """
    refusals = {}
    for node in region.calls:
        if op_name(node) in _LAYERS:
            operands = arguments(node)
            operand, weight, bias = (operands[name] for name in _LAYERS[op_name(node)])
            steps = _steps(region, operand, weight, region.constants.get(bias))
            if steps > _MOST:
                refusals[node.name] = (
                    f"its bias is {steps:.3g} times the product of its operands' scales, which does not fit into int32"
                )
    return refusals


def _steps(region: Region, operand: Node, weight: Node, bias: torch.Tensor | None) -> float:
    """Return the most steps of a bias element; 0 without a bias, or if an operand is not decoded integers."""
    scales = _scale(region, operand), _scale(region, weight)
    if bias is None or scales[0] is None or scales[1] is None or not bias.numel():
        return 0.0
    step = scales[0].double() * scales[1].double().reshape(-1)
    step = step if step.numel() == bias.numel() else step.min()
    return float((bias.double().reshape(-1).abs() / step).max())


def _scale(region: Region, node: Node) -> torch.Tensor | None:
    """Return the scale that an operand was decoded with, if known."""
    if op_name(node) not in _SCALES:
        return None
    scale = arguments(node)[_SCALES[op_name(node)]]
    return region.constants.get(scale) if isinstance(scale, Node) else torch.tensor(scale)


_DECODES = {  # operator -> its argument
    "quantized_decomposed.dequantize_per_channel.default": "zero_points",
    "quantized_decomposed.dequantize_per_tensor.default": "zero_point",
}


def cut_off(region: Region) -> dict[str, str]:
    """Return the nodes that decode integers by zero points outside of the integers' type, with reasons."""
    refusals = {}
    for node in region.calls:
        zeros = _zero_points(region, node)
        if zeros is not None:
            dtype = tensor(arguments(node)["input"]).dtype
            info = torch.iinfo(dtype)
            low, high = (0, 0) if dtype is torch.int32 else (info.min, info.max)  # ONNX has none of int32
            if not torch.equal(zeros, zeros.round().clamp(low, high)):
                refusals[node.name] = f"zero points that are not all whole numbers from {low} to {high}"
    return refusals


def _zero_points(region: Region, node: Node) -> torch.Tensor | None:
    """Return the zero points of a decoding node as float64; None if they are unknown."""
    if op_name(node) not in _DECODES:
        return None
    argument = arguments(node)[_DECODES[op_name(node)]]
    zeros = region.constants.get(argument) if isinstance(argument, Node) else torch.tensor(argument or 0)
    return None if zeros is None else zeros.detach().cpu().double()


# Operators that the exporter, or ONNX Runtime, translates with constants of its own in float32.
_OWN_NUMBERS = frozenset(f"aten.{name}.default" for name in ("log10", "log2", "scaled_dot_product_attention"))


def keeps_float64(node: Node) -> Verdict:
    """On float64, numbers among the arguments are exact in float32."""
    if not any(t.dtype is torch.float64 for n in (node, *node.all_input_nodes) for t in tensors(n)):
        return YES
    if op_name(node) in _OWN_NUMBERS:
        return no(Reason.INACCURATE, "its constants are rounded to float32, but its operands are float64")
    for name, argument in arguments(node).items():
        rounded = next((n for n in _numbers(argument) if not _fits_float32(n)), None)
        if rounded is not None:
            return no(Reason.INACCURATE, f"{name}={rounded} is rounded to float32, but the operands are float64")
    return YES


def _numbers(argument: Any) -> Iterator[float]:
    if isinstance(argument, list | tuple):
        for element in argument:
            yield from _numbers(element)
    elif isinstance(argument, int | float):
        yield argument


def _fits_float32(number: float) -> bool:
    """Return true for a number that float32 represents exactly, including infinities and NaN."""
    if isinstance(number, float) and not math.isfinite(number):
        return True
    try:
        return bool(struct.unpack("<f", struct.pack("<f", number))[0] == number)
    except OverflowError:
        return False
