"""The quantized patterns that ONNX Runtime runs as one operator on the CPU: support checks of nodes, without values."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from delegate.backends import quantized_layers
from delegate.backends.quantized_layers import Layer, Ranges
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.schemes import FUSES, INTEGERS

# Of MatMulNBits and GatherBlockQuantized: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
LEAST_BLOCK = 16
LIBRARY = "ONNX Runtime"


def find_layer(node: Node) -> Layer | Verdict | None:
    """Return the layer that a node ends; a refusal of quantized activations; None for another node."""
    return quantized_layers.find_layer(node, LIBRARY)


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


def match_dynamic(node: Node) -> Sequence[Node] | Verdict | None:
    """Match a layer of activations that are quantized at run time."""
    layer = find_layer(node)
    if not isinstance(layer, Layer):
        return layer
    return None if layer.ranges is Ranges.NONE else _with_blocks(layer)


def match_small(node: Node) -> Sequence[Node] | Verdict | None:
    """Match a layer of weights in 4 bits."""
    layer = find_layer(node)
    small = isinstance(layer, Layer) and layer.ranges is Ranges.NONE and layer.is_small
    return _with_blocks(layer) if isinstance(layer, Layer) and small else None


def match_decoded(node: Node) -> Sequence[Node] | None:
    """Match a layer of weights in integers and activations in floats."""
    return quantized_layers.match_decoded(node, LIBRARY)


def _with_blocks(layer: Layer) -> Sequence[Node] | Verdict:
    verdict = YES if layer.scales is not None else _blocks(layer.weight)
    return layer.nodes if verdict else verdict


def match_table(embedding: Node) -> Sequence[Node] | Verdict | None:
    """Match a lookup in a constant table of integers."""
    nodes = quantized_layers.match_table(embedding)
    if not isinstance(nodes, tuple):
        return nodes
    verdict = _blocks(nodes[0])
    return nodes if verdict else verdict


def match_convolution(convolution: Node) -> Verdict | None:
    """Report a convolution of activations that are quantized at run time."""
    return quantized_layers.match_convolution(convolution, LIBRARY)


def match_integers(quantize: Node) -> Sequence[Node] | None:
    """Match an operator between dequantize and quantize operators, with its activation, for an operator on integers."""
    return quantized_layers.match_integers(quantize, INTEGERS, FUSES)
