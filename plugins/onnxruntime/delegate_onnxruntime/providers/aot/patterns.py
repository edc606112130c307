"""The integers of ONNX Runtime's CPU provider: operators for quantizers, and patterns that it runs as one operator.

Source: the selectors in onnxruntime/core/optimizer/qdq_transformer/selectors_actions of
https://github.com/microsoft/onnxruntime, and ONNX Runtime 1.31 itself, queried for each operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from delegate_vendor_kit import quantized_layers
from delegate_vendor_kit.quantized_layers import Layer, Ranges, find_layer
from delegate_vendor_kit.schemes import integer_operators, library_schemes
from torch.fx import Node

from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no

# Of MatMulNBits and GatherBlockQuantized: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
LEAST_BLOCK = 16
LIBRARY = "ONNX Runtime"

SCHEMES = library_schemes(
    products=("aten.mm.default", "aten.bmm.default", "aten.matmul.default"),
    functions=tuple(f"aten.{name}.default" for name in ("_adaptive_avg_pool2d", "avg_pool2d", "sigmoid", "leaky_relu")),
    group=16,
)
INTEGERS = integer_operators(SCHEMES[0])


def _blocks(weight: Node) -> Verdict:
    """Check that the scales of a matrix are for the tensor, for its rows, or for blocks of its rows."""
    named, shape = arguments(weight), tuple(tensor(weight).shape)
    if len(shape) != 2:
        return no(Reason.RANK, f"{weight.name} has {len(shape)} dimensions")
    if named.get("axis", 0) % 2:
        return no(Reason.ATTRIBUTE, "a scale for each input, but ONNX Runtime has scales for outputs")
    rows, size = named.get("block_size", (1, named.get("group_size", shape[1])))
    if (rows, size) == shape or (rows == 1 and size == shape[1]):
        return YES
    if rows != 1:
        return no(Reason.ATTRIBUTE, f"blocks of {rows} rows, but ONNX Runtime has blocks within rows")
    if size % LEAST_BLOCK:
        return no(Reason.ATTRIBUTE, f"blocks of {size}, but ONNX Runtime has blocks of multiples of {LEAST_BLOCK}")
    return YES


def match_layer(node: Node) -> Sequence[Node] | Verdict | None:
    """Match a linear layer of weights in integers; activations are floats, or quantized at run time."""
    layer = find_layer(node)
    if not isinstance(layer, Layer):
        return layer
    verdict = YES if layer.ranges is Ranges.NONE else check_blocks(layer)
    return layer.nodes if verdict else verdict


def check_blocks(layer: Layer) -> Verdict:
    """Check that an operator of ONNX Runtime has the scales of a layer's weights."""
    return YES if layer.scales is not None else _blocks(layer.weight)


def match_table(embedding: Node) -> Sequence[Node] | Verdict | None:
    """Match a lookup in a constant table of integers."""
    nodes = quantized_layers.match_table(embedding)
    if not isinstance(nodes, tuple):
        return nodes
    verdict = _blocks(nodes[0])
    return nodes if verdict else verdict
