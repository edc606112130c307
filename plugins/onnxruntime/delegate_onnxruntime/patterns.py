"""The quantized patterns that ONNX Runtime runs as one operator on the CPU: support checks of nodes, without values."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import torch
from torch.fx import Node

from delegate.backends.qdq import CHOOSES, DECODES, DEQUANTIZE, chain, find_scaled_product, is_known
from delegate.edge.node import arguments, is_constant, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.schemes import FUSES, INTEGERS

LINEAR = "aten.linear.default"
EMBEDDING = "aten.embedding.default"
# Of MatMulNBits and GatherBlockQuantized: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
LEAST_BLOCK = 16
_PER_TENSOR = frozenset(CHOOSES[:2])  # one range for all of a tensor


class Ranges(Enum):
    """The values of an activation that share a range, which is chosen at run time."""

    NONE = "not quantized"
    TENSOR = "all values"
    ROW = "the values of a row"


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer with constant weights in integers.

    Args:
        source: its activations in floats.
        ranges: the quantization of the activations.
        nodes: all nodes of the pattern.
        weight: the node that decodes the weights (outputs, inputs); of a scaled product, the weights (inputs, outputs).
        bias: the bias, if it has one.
        scales: the scales of the outputs of a scaled product.
    """

    source: Node
    ranges: Ranges
    nodes: tuple[Node, ...]
    weight: Node
    bias: Node | None = None
    scales: Node | None = None

    @property
    def is_small(self) -> bool:
        """Return true if the declared range of the weights is 4 bits."""
        if self.scales is not None:
            return False
        named = arguments(self.weight)
        return named["quant_min"] is not None and named["quant_min"] >= -8 and named["quant_max"] <= 7

    def has_blocks(self) -> Verdict:
        """Check that ONNX Runtime supports the scales of the weights in a product of integers."""
        return YES if self.scales is not None else _blocks(self.weight)


def find_layer(node: Node) -> Layer | Verdict | None:
    """Return the layer that a node ends; a refusal of quantized activations; None for another node."""
    return _linear(node) if op_name(node) == LINEAR else _scaled_product(node)


def _linear(layer: Node) -> Layer | Verdict | None:
    named = arguments(layer)
    source, weight, bias = (named[name] for name in ("input", "weight", "bias"))
    quantization = chain(source)
    decodes = isinstance(weight, Node) and op_name(weight) in DECODES and is_known(weight)
    if quantization is None and (not decodes or op_name(source) == DEQUANTIZE):
        return None
    if not decodes:
        return no(Reason.NON_CONSTANT, "the activations are quantized, but the weights are not constant integers")
    bias_nodes = (bias,) if isinstance(bias, Node) and bias.op == "call_function" and is_known(bias) else ()
    ranges, nodes, verdict = Ranges.NONE, (weight, *bias_nodes, layer), YES
    if quantization is not None:
        source, chosen = quantization
        ranges = Ranges.TENSOR if op_name(chosen[0]) in _PER_TENSOR else Ranges.ROW
        nodes, verdict = (*chosen, *nodes), _read_by_layers(chosen)
    verdict = verdict and _in_float32(source, weight, layer)
    return Layer(source, ranges, nodes, weight, bias) if verdict else verdict


def _read_by_layers(chosen: Sequence[Node]) -> Verdict:
    """Check that only linear layers read a value that is quantized at run time."""
    *inner, decoded = chosen
    other = next((user for user in decoded.users if op_name(user) != LINEAR), None)
    if other is None:
        other = next((user for node in inner for user in node.users if user not in chosen), None)
    if other is None:
        return YES
    why = f"{other.name} reads a value that is quantized at run time, which ONNX Runtime supports only in linear layers"
    return no(Reason.OPERATOR, why)


def _in_float32(*nodes: Node) -> Verdict:
    other = next((n for n in nodes if tensor(n).dtype is not torch.float32), None)
    if other is None:
        return YES
    return no(Reason.DTYPE, f"{other.name} is {tensor(other).dtype}, but weights are decoded to float32 only")


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


def _scaled_product(mul: Node) -> Layer | Verdict | None:
    """Return the layer that torchao's `quantize_` writes as a product of integers and its scales."""
    found = find_scaled_product(mul)
    if found is None:
        return None
    source, nodes, weight, scales = found
    if tensor(source).dtype is not torch.float32 or not is_constant(weight):
        return None
    ranges = Ranges.ROW if any(op_name(n) in CHOOSES for n in nodes) else Ranges.NONE
    return Layer(source, ranges, nodes, weight, scales=scales)


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
    layer = find_layer(node)
    return layer.nodes if isinstance(layer, Layer) and layer.ranges is Ranges.NONE else None


def _with_blocks(layer: Layer) -> Sequence[Node] | Verdict:
    verdict = layer.has_blocks()
    return layer.nodes if verdict else verdict


def match_table(embedding: Node) -> Sequence[Node] | Verdict | None:
    """Match a lookup in a constant table of integers."""
    table = arguments(embedding)["weight"]
    if not (isinstance(table, Node) and op_name(table) in DECODES and is_known(table)):
        return None
    verdict = _in_float32(table) and _blocks(table)
    return (table, embedding) if verdict else verdict


def match_convolution(convolution: Node) -> Verdict | None:
    """Report a convolution of activations that are quantized at run time."""
    if chain(convolution.args[0]) is None:
        return None
    return no(Reason.OPERATOR, "a convolution of values that are quantized at run time: ONNX Runtime has linear layers")


def match_integers(quantize: Node) -> Sequence[Node] | None:
    """Match an operator between dequantize and quantize operators, with its activation, for an operator on integers."""
    node: Any = quantize.args[0]
    nodes = [quantize]
    if _is_only_read(node) and op_name(node) in FUSES:
        nodes.append(node)
        node = node.args[0]
    if not _is_only_read(node) or op_name(node) not in INTEGERS or node.target is operator.getitem:
        return None
    decoded = [n for n in cast(Node, node).all_input_nodes if n.op == "call_function" and op_name(n) in DECODES]
    # Nodes that decode activations may come much earlier (a residual), so they are not part of the pattern.
    return (*filter(is_known, decoded), node, *reversed(nodes)) if decoded else None


def _is_only_read(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and len(node.users) == 1
