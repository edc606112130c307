"""Zero points of integers: in ONNX, they have the type of the values, and the exporter truncates them to it."""

from __future__ import annotations

import torch
from torch.fx import Node

from delegate.backends.region import Region
from delegate.edge.node import arguments, op_name, tensor

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
