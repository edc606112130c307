"""The quantized patterns that OpenVINO runs on the CPU: support checks of nodes, without values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from delegate_vendor_kit.quantized_layers import Layer, Ranges, find_layer
from torch.fx import Node

from delegate.backend.qdq import DEQUANTIZE, QUANTIZE, is_known
from delegate.edge.node import arguments, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_openvino.compressed import group_of_activations, storage_bits

_BYTES = frozenset({torch.int8, torch.uint8})
_CODED = _BYTES | {torch.int16, torch.int32, torch.int64}
_NUMBERS = np.finfo(np.float32)


def check_conversion(node: Node) -> Verdict:
    """Check a node that quantizes values, or decodes integers, by parameters that are known."""
    named, result = arguments(node), tensor(node)
    source = named["input"]
    if op_name(node) == QUANTIZE:
        integers, floats = result.dtype, tensor(source).dtype
    else:
        integers, floats = tensor(source).dtype, result.dtype
    if floats is not torch.float32 or integers not in (_CODED if is_known(node) else _BYTES):
        return no(Reason.DTYPE, f"OpenVINO has no conversion between {floats} and {integers}".replace("torch.", ""))
    if is_known(node):
        return YES
    if op_name(node) not in (QUANTIZE, DEQUANTIZE):
        return no(Reason.NON_CONSTANT, "OpenVINO decodes only constants with several scales")
    least, most = named["scale"], named["scale"] * (1 << 9)
    if least < _NUMBERS.tiny or most > _NUMBERS.max:
        return no(Reason.INACCURATE, f"the scale {named['scale']} is beyond the numbers of float32")
    return YES


def group_of_layer(layer: Layer) -> int | None:
    """Return the number of activations that share a range when a layer runs; 0 for floats, None for any number."""
    if layer.ranges is Ranges.NONE:
        return 0
    return group_of_activations(tensor(layer.source).shape[-1], layer.block[1])


def match_layer(node: Node) -> Sequence[Node] | Verdict | None:
    """Match a linear layer of weights in integers; activations are floats, or quantized at run time."""
    layer = find_layer(node)
    if not isinstance(layer, Layer):
        return layer
    inputs, block = tensor(layer.source).shape[-1], layer.block[1]
    bits = 4 if layer.is_small else 8
    if layer.ranges is not Ranges.NONE and not all(
        storage_bits(inputs, block, bits, signed) for signed in (True, False)
    ):
        return no(Reason.ATTRIBUTE, f"blocks of {block} inputs, whose weights OpenVINO decodes to floats")
    return layer.nodes
