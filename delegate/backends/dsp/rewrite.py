"""Rewrites of a region before it is lowered, where QNN computes an operator inexactly or wrongly.

Measured on the emulator of onnxruntime-qnn 2.7.0: HardSwish in float16 scales by 1/6 rounded down, so that its errors
have one sign and grow from layer to layer; and x * hardsigmoid(x) is off by more than its own size unless
hardsigmoid(x) is the first operand.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from delegate.backends.aot import Region
from delegate.edge.node import op_name

aten = torch.ops.aten


def rewritten(region: Region) -> Region:
    """The region with hardswish in float as hardsigmoid(x) * x, and every such product in this order."""
    made = region.copy()
    for node in list(made.graph.nodes):
        if op_name(node) == "aten.hardswish.default" and not _is_quantized(node):
            _spell_out(node)
        elif op_name(node) == "aten.mul.Tensor":
            _order(node)
    return made


def _is_quantized(node: Node) -> bool:
    """Whether the node stands between q/dq operators, where QNN runs it in integers."""
    return all("dequantize" in op_name(source) for source in node.all_input_nodes)


def _spell_out(node: Node) -> None:
    source = node.args[0]
    with node.graph.inserting_before(node):
        gate = node.graph.call_function(aten.hardsigmoid.default, (source,))
    gate.meta = dict(node.meta)
    node.target, node.args = aten.mul.Tensor, (gate, source)


def _order(node: Node) -> None:
    first, second = node.args
    if isinstance(second, Node) and op_name(second) == "aten.hardsigmoid.default" and second.args[0] is first:
        node.args = (second, first)
