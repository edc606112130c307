"""Separate decodings of a constant with several users: each layer gets its own node, and the other users share one.

Otherwise a table of embeddings that is also the last layer's weight would have to leave the layer's backend. And the
two calls of one layer would be one pattern of a backend, without the nodes between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from delegate.edge.build import make_like
from delegate.edge.graphs import graph_modules
from delegate.edge.node import is_constant, op_name, tensors
from delegate.edge.passes import PassResult
from delegate.edge.program import EdgeProgram

_SMALL = frozenset({torch.int8, torch.uint8})
_LAYERS = frozenset(f"aten.{name}.default" for name in ("linear", "convolution", "mm", "addmm", "bmm", "matmul"))
_DECODES = ("quantized_decomposed.dequantize_per_", "torchao.dequantize_affine.")


@dataclass(frozen=True, slots=True)
class SplitDecodings:
    """A pass that adds a separate decoding node for each layer that reads a decoded constant with other users."""

    def __call__(self, program: EdgeProgram) -> PassResult:
        modified = False
        for module in graph_modules(program.graph_module):
            for node in list(module.graph.nodes):
                if node.op == "call_function" and _decodes_constant(node):
                    modified |= _split(module.graph, node)
        return PassResult(program, modified)


def _decodes_constant(node: Node) -> bool:
    if len(node.users) < 2 or not op_name(node).startswith(_DECODES):
        return False
    held = node.all_input_nodes
    return all(map(is_constant, held)) and tensors(held[0])[0].dtype in _SMALL


def _split(graph: Graph, node: Node) -> bool:
    layers = [user for user in node.users if _is_layer(user)]
    keeps_own = len(layers) == len(node.users)
    for layer in layers[keeps_own:]:
        with graph.inserting_after(node):
            own = make_like(node, node.target, node.args, node.kwargs)
        layer.replace_input_with(node, own)
    return len(layers) > keeps_own


def _is_layer(user: Node) -> bool:
    return user.op == "call_function" and op_name(user) in _LAYERS
