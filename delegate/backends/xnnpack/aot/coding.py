"""The parameters of int8 activations that quantize and dequantize nodes have."""

from __future__ import annotations

import numpy as np
from torch.fx import Node

from delegate.backend.qdq import DEQUANTIZE, QUANTIZE, SHIFT
from delegate.backends.xnnpack.aot.operand import Integers
from delegate.edge.node import arguments, op_name


def integers_of(node: Node) -> Integers | None:
    """Return the parameters of a node that quantizes or decodes int8 or uint8 per tensor; None for another node."""
    if op_name(node) not in (QUANTIZE, DEQUANTIZE):
        return None
    named = arguments(node)
    shift = SHIFT.get(named["dtype"])
    return None if shift is None else Integers(float(np.float32(named["scale"])), int(named["zero_point"]) - shift)


def decoding_parameters(node: Node) -> Integers | None:
    """Return the parameters by which all readers decode a value in integers; None for floats."""
    candidates = {integers_of(user) for user in node.users if op_name(user) == DEQUANTIZE}
    return candidates.pop() if len(candidates) == 1 else None
