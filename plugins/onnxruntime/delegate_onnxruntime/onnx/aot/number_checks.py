"""Checks of numbers that an ONNX model cannot hold.

ONNX Runtime and QNN store biases of layers on integers in 32 bits, even if they exceed 32 bits. In ONNX, zero points
have the type of the values, and the exporter truncates them to it.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from delegate.backend.region import Region
from delegate.edge.node import arguments, op_name, tensor

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


def find_large_biases(region: Region) -> dict[str, str]:
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


def find_cut_off_zero_points(region: Region) -> dict[str, str]:
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
