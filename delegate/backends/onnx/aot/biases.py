"""Biases of layers on integers: ONNX Runtime and QNN store them in 32 bits, even if they exceed 32 bits."""

from __future__ import annotations

import torch
from torch.fx import Node

from delegate.backends.region import Region
from delegate.edge.node import arguments, op_name

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
                    f"its bias is {steps:.3g} steps of its operands' scales, and integers have 32 bits"
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
