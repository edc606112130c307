"""Fusion of quantize and dequantize nodes into single kernels, and removal of redundant ones.

A value that is quantized and dequantized at once is rounded by one kernel. It is not rounded again after operators that
only move data. Embeddings in integers are dequantized after the lookup, so the table stays small in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from delegate.edge.node import arguments, is_constant, op_name, tensor

_Q = "quantized_decomposed"
_PER_TENSOR = f"{_Q}.dequantize_per_tensor.default"
# Dequantize operator -> its quantize operator, and the fused operator.
_PAIRS = {
    _PER_TENSOR: (f"{_Q}.quantize_per_tensor.default", "joined.round_per_tensor.default"),
    f"{_Q}.dequantize_per_tensor.tensor": (f"{_Q}.quantize_per_tensor.tensor", "joined.round_per_tensor.default"),
    f"{_Q}.dequantize_per_token.default": (f"{_Q}.quantize_per_token.default", "joined.round_per_token.default"),
}
_TABLE = f"{_Q}.dequantize_per_channel.default"
_LOOK_UP = "aten.embedding.default"
# Operators whose results are elements of their first argument, or zero, which every quantized type has.
_MOVES = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "permute.default", "expand.default", "slice.Tensor", "select.int", "squeeze.dims",
        "unsqueeze.default", "clone.default", "index_select.default", "flip.default", "relu.default",
    )
)  # fmt: skip
_STEPS = 1 << 16  # most steps of a type whose integers survive a round trip through floats


@dataclass(slots=True)
class FusedNodes:
    """The fused and redundant nodes of a graph.

    Args:
        calls: node -> the operator to call in its place, and the arguments, including nodes.
        same: node -> the node with an equal value.
        idle: nodes whose results are no longer read.
    """

    calls: dict[Node, tuple[str, list[Any]]] = field(default_factory=dict)
    same: dict[Node, Node] = field(default_factory=dict)
    idle: set[Node] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph) -> FusedNodes:
        """Find the fused and redundant nodes of a lowered graph."""
        fused, rounded = cls(), dict[Node, tuple[Any, ...]]()
        for node in graph.nodes:
            name, source = op_name(node) if node.op == "call_function" else "", node.args[0] if node.args else None
            if not isinstance(source, Node):
                continue
            if name in _PAIRS:
                fused._decode(node, name, source, rounded)
            elif name in _MOVES and source in rounded:
                rounded[node] = rounded[source]
            elif name == _LOOK_UP:
                fused._look_up(node, source)
        fused.idle |= {n for n in graph.nodes if n.op == "call_function" and n.users and fused._is_idle(n)}
        return fused

    def _decode(self, node: Node, name: str, source: Node, rounded: dict[Node, tuple[Any, ...]]) -> None:
        """Fuse a dequantize node; `rounded` has the quantization parameters of values that are rounded already."""
        quantizes, both = _PAIRS[name]
        parameters = tuple(arguments(node).values())[1:6]
        if name == _PER_TENSOR and tensor(node).dtype is torch.float32 and parameters[3] - parameters[2] < _STEPS:
            rounded[node] = parameters[:4]
        if op_name(source) != quantizes or tuple(arguments(source).values())[1:6] != parameters:
            return
        floats = source.args[0]
        assert isinstance(floats, Node)
        if not tensor(floats).dtype is tensor(node).dtype is torch.float32:
            return
        if node in rounded and rounded.get(floats) == rounded[node]:
            self.same[node] = floats
        else:
            self.calls[node] = (both, [floats, *parameters[:4]])

    def _look_up(self, node: Node, source: Node) -> None:
        """Fuse an embedding lookup in a dequantized table."""
        args = arguments(source) if op_name(source) == _TABLE else {}
        if args and args["axis"] == 0 and all(map(is_constant, source.all_input_nodes)):
            parameters = [args["input"], args["scales"], args["zero_points"]]
            self.calls[node] = ("joined.embedding.default", [*parameters, node.args[1]])

    def _is_idle(self, node: Node) -> bool:
        """Return if all users of a node read another value now."""
        return all(user in self.same or (user in self.calls and node not in self.calls[user][1]) for user in node.users)
