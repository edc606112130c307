"""Linear layers with constant weights in integers: the forms that exporters write, as one description."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from delegate.backend.qdq import (
    CHOOSES,
    DECODES,
    DEQUANTIZE,
    Array,
    Coded,
    chain,
    coded,
    decoded,
    find_scaled_product,
    is_known,
)
from delegate.edge.graphs import call
from delegate.edge.node import arguments, is_constant, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_vendor_kit.schemes import FUSES

LINEAR = "aten.linear.default"
EMBEDDING = "aten.embedding.default"
LAYERS = (LINEAR, "aten.mul.Tensor")  # the operators that end a layer
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
        scales: the output scales of a scaled product.
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

    @property
    def block(self) -> tuple[int, int]:
        """Return the outputs and the inputs that share a scale."""
        if self.scales is not None:
            return 1, tensor(self.weight).shape[0]
        return block_of(self.weight)

    def weights(self, constants: Mapping[Node, torch.Tensor]) -> Coded | str:
        """Return the weights (outputs, inputs); the reason if integers of 8 bits do not hold them.

        Args:
            constants: the constants of the region that has the layer.
        """
        if self.scales is None:
            return coded_value(self.weight, constants)
        scales = known_value(self.scales, constants).float().reshape(-1, 1).numpy()
        return Coded(known_value(self.weight, constants).T.numpy(), scales)


def block_of(decode: Node) -> tuple[int, int]:
    """Return the rows and columns that share a scale, for a node that decodes a constant matrix."""
    named, (rows, columns) = arguments(decode), tensor(decode).shape
    if op_name(decode) == DEQUANTIZE:
        return rows, columns
    if "axis" in named:
        return (1, columns) if named["axis"] % 2 == 0 else (rows, 1)
    block = named.get("block_size", (1, named.get("group_size")))
    return block[0], block[1]


def known_value(node: Node, constants: Mapping[Node, torch.Tensor]) -> Any:
    """Return the value of a constant, or of a node that computes with constants alone."""
    if node in constants:
        return constants[node]
    with torch.no_grad():
        return call(node.target, *map_arg((node.args, node.kwargs), lambda n: known_value(n, constants)))


def coded_value(decode: Node, constants: Mapping[Node, torch.Tensor]) -> Coded | str:
    """Return the constant that a node decodes; the reason if integers of 8 bits do not hold it."""
    return coded(decode, _values(decode, constants))


def decode_value(decode: Node, constants: Mapping[Node, torch.Tensor]) -> Array:
    """Return the constant that a node decodes, in float32."""
    return decoded(decode, _values(decode, constants))


def _values(decode: Node, constants: Mapping[Node, torch.Tensor]) -> dict[str, Any]:
    named = arguments(decode).items()
    return {name: known_value(v, constants) if isinstance(v, Node) else v for name, v in named}


def find_layer(node: Node) -> Layer | Verdict | None:
    """Return the layer that a node of `LAYERS` ends; a refusal of its dtypes; None for another node."""
    return _linear(node) if op_name(node) == LINEAR else _match_scaled_product(node)


def _linear(layer: Node) -> Layer | Verdict | None:
    named = arguments(layer)
    source, weight, bias = (named[name] for name in ("input", "weight", "bias"))
    quantization = chain(source)
    decodes = isinstance(weight, Node) and op_name(weight) in DECODES and is_known(weight)
    if not decodes or (quantization is None and op_name(source) == DEQUANTIZE):
        return None
    bias_nodes = (bias,) if isinstance(bias, Node) and bias.op == "call_function" and is_known(bias) else ()
    ranges, nodes = Ranges.NONE, (weight, *bias_nodes, layer)
    if quantization is not None:
        source, chosen = quantization
        ranges = Ranges.TENSOR if op_name(chosen[0]) in _PER_TENSOR else Ranges.ROW
        nodes = (*chosen, *nodes)
    verdict = decodes_to_float32(source, weight, layer)
    return Layer(source, ranges, nodes, weight, bias) if verdict else verdict


def decodes_to_float32(*nodes: Node) -> Verdict:
    """Check that the nodes of a pattern are in float32."""
    other = next((n for n in nodes if tensor(n).dtype is not torch.float32), None)
    if other is None:
        return YES
    return no(Reason.DTYPE, f"{other.name} is {tensor(other).dtype}, but weights are decoded to float32 only")


def _match_scaled_product(mul: Node) -> Layer | Verdict | None:
    """Return the layer that torchao's `quantize_` writes as a product of integers and its scales."""
    found = find_scaled_product(mul)
    if found is None:
        return None
    source, nodes, weight, scales = found
    if tensor(source).dtype is not torch.float32 or not is_constant(weight):
        return None
    ranges = Ranges.ROW if any(op_name(n) in CHOOSES for n in nodes) else Ranges.NONE
    return Layer(source, ranges, nodes, weight, scales=scales)


def match_table(embedding: Node) -> tuple[Node, Node] | Verdict | None:
    """Match a lookup in a constant table of integers; return the node that decodes the table, and the lookup."""
    table = arguments(embedding)["weight"]
    if not (isinstance(table, Node) and op_name(table) in DECODES and is_known(table)):
        return None
    verdict = decodes_to_float32(table)
    return (table, embedding) if verdict else verdict


def match_integers(quantize: Node, integers: Collection[str]) -> Sequence[Node] | None:
    """Match an operator between dequantize and quantize operators, with its activation, for an operator on integers.

    Args:
        quantize: the node that quantizes the result.
        integers: operators that the library computes in integers.
    """
    node: Any = quantize.args[0]
    nodes = [quantize]
    if _is_only_read(node) and op_name(node) in FUSES:
        nodes.append(node)
        node = node.args[0]
    if not _is_only_read(node) or op_name(node) not in integers or node.target is operator.getitem:
        return None
    sources = [n for n in cast(Node, node).all_input_nodes if n.op == "call_function" and op_name(n) in DECODES]
    # Nodes that decode activations may come much earlier (a residual), so they are not part of the pattern.
    return (*filter(is_known, sources), node, *reversed(nodes)) if sources else None


def _is_only_read(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and len(node.users) == 1
