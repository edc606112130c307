"""Nodes of quantized programs that kernels run as one, or that change nothing there.

A value that is quantized and decoded at once is rounded in one kernel, and not again where it has only been moved
since. Rows that are looked up in a table of integers are decoded after that: the table stays small in memory, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from delegate.edge.node import arguments, is_constant, op_name, tensor

_Q = "quantized_decomposed"
_PER_TENSOR = f"{_Q}.dequantize_per_tensor.default"
# What decodes -> what quantizes so, and both in one.
_PAIRS = {
    _PER_TENSOR: (f"{_Q}.quantize_per_tensor.default", "joined.round_per_tensor.default"),
    f"{_Q}.dequantize_per_tensor.tensor": (f"{_Q}.quantize_per_tensor.tensor", "joined.round_per_tensor.default"),
    f"{_Q}.dequantize_per_token.default": (f"{_Q}.quantize_per_token.default", "joined.round_per_token.default"),
}
_TABLE = f"{_Q}.dequantize_per_channel.default"
_LOOK_UP = "aten.embedding.default"
# Give elements of their first argument as they are, or the zero that every such type has.
_MOVES = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "permute.default", "expand.default", "slice.Tensor", "select.int", "squeeze.dims",
        "unsqueeze.default", "clone.default", "index_select.default", "flip.default", "relu.default",
    )
)  # fmt: skip
_STEPS = 1 << 16  # of a type whose integers come back from floats as they were


@dataclass(slots=True)
class Joined:
    """What is emitted otherwise.

    Args:
        calls: node -> the operator that it becomes, and its arguments, nodes among them.
        same: node -> the node whose value it has.
        idle: nodes whose results nobody reads then.
    """

    calls: dict[Node, tuple[str, list[Any]]] = field(default_factory=dict)
    same: dict[Node, Node] = field(default_factory=dict)
    idle: set[Node] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph) -> Joined:
        """What of a lowered graph kernels run otherwise."""
        found, rounded = cls(), dict[Node, tuple[Any, ...]]()
        for node in graph.nodes:
            name, source = op_name(node) if node.op == "call_function" else "", node.args[0] if node.args else None
            if not isinstance(source, Node):
                continue
            if name in _PAIRS:
                found._decode(node, name, source, rounded)
            elif name in _MOVES and source in rounded:
                rounded[node] = rounded[source]
            elif name == _LOOK_UP:
                found._look_up(node, source)
        found.idle |= {n for n in graph.nodes if n.op == "call_function" and n.users and found._is_idle(n)}
        return found

    def _decode(self, node: Node, name: str, source: Node, rounded: dict[Node, tuple[Any, ...]]) -> None:
        """A value that is decoded; `rounded` has the parameters of those that are some integers' floats."""
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
        """A row of a decoded table."""
        given = arguments(source) if op_name(source) == _TABLE else {}
        if given and given["axis"] == 0 and all(map(is_constant, source.all_input_nodes)):
            parameters = [given["input"], given["scales"], given["zero_points"]]
            self.calls[node] = ("joined.embedding.default", [*parameters, node.args[1]])

    def _is_idle(self, node: Node) -> bool:
        """Whether all that take a node's value take another now."""
        return all(user in self.same or (user in self.calls and node not in self.calls[user][1]) for user in node.users)
