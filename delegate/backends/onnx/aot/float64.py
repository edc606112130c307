"""A check that numbers of operators on float64 keep their digits.

Torch's ONNX exporter writes the numbers among the arguments of an operator in float32, like ONNX's attributes. On
float64, the relative error of the result is then 3e-8, or a comparison with the number itself is false.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from delegate.edge.node import arguments, op_name, tensors
from delegate.verdict import YES, Reason, Verdict, no

# Operators that the exporter, or ONNX Runtime, translates with constants of its own in float32.
_OWN_NUMBERS = frozenset(f"aten.{name}.default" for name in ("log10", "log2", "scaled_dot_product_attention"))


def keeps_float64(node: Node) -> Verdict:
    """On float64, numbers among the arguments are exact in float32."""
    if not any(t.dtype is torch.float64 for n in (node, *node.all_input_nodes) for t in tensors(n)):
        return YES
    if op_name(node) in _OWN_NUMBERS:
        return no(Reason.INACCURATE, "its constants are rounded to float32 beside float64")
    for name, argument in arguments(node).items():
        rounded = next((n for n in _numbers(argument) if not _fits_float32(n)), None)
        if rounded is not None:
            return no(Reason.INACCURATE, f"{name}={rounded} is rounded to float32 beside float64")
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
