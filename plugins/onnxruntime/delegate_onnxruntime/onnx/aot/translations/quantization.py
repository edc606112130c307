"""Quantization, as PT2E leaves it in a program, with scales and zero points as constants of wider types."""

from __future__ import annotations

import torch
from torch.fx import Node

from delegate.edge.node import arguments, is_constant, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.row import row


def _whole_range(node: Node) -> Verdict:
    """The range of values is all of the integer type.

    ONNX's QuantizeLinear saturates at the type's ends and nowhere before.
    """
    args, info = arguments(node), torch.iinfo(tensor(node).dtype)
    low, high = args["quant_min"], args["quant_max"]
    if (low, high) == (info.min, info.max):
        return YES
    return no(Reason.ATTRIBUTE, f"values from {low} to {high}, but {info.dtype} ranges from {info.min} to {info.max}")


def _no_wide_zero_point(node: Node) -> Verdict:
    """A zero point is 0 for int32.

    ONNX has none there; ONNX Runtime subtracts it in 32 bits, where torch does so in floats.
    """
    args = arguments(node)
    if tensor(args["input"]).dtype is torch.int32 and args["zero_point"] != 0:
        return no(Reason.ATTRIBUTE, f"int32 with the zero point {args['zero_point']}")
    return YES


def _constant_parameters(node: Node) -> Verdict:
    """Scales and zero points are constants."""
    args = arguments(node)
    moving = next((n for n in (args["scales"], args["zero_points"]) if n is not None and not is_constant(n)), None)
    return YES if moving is None else no(Reason.ATTRIBUTE, f"{moving.name} is computed at run time")


ROWS = (
    row("quantized_decomposed.quantize_per_tensor.default", ("QuantizeLinear",), _whole_range),
    row("quantized_decomposed.dequantize_per_tensor.default", ("DequantizeLinear",), _no_wide_zero_point),
    row(
        "quantized_decomposed.dequantize_per_channel.default",
        ("DequantizeLinear",),
        _constant_parameters,
        also=frozenset({torch.int64, torch.float64}),
    ),
)
