"""Removal of redundant nodes: operators without effect, repeated computations, and nodes without users."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from delegate.edge.build import is_pure
from delegate.edge.graphs import drop_unused, graph_modules
from delegate.edge.node import arguments, op_name, tensors
from delegate.edge.passes import in_each_graph
from delegate.edge.program import EdgeProgram


@in_each_graph
def remove_no_ops(graph: Graph) -> None:
    """Remove copies, casts, reshapes, slices and arithmetic without effect.

    A copy of a placeholder that is a result stays: the caller and a state each own their memory.
    """
    for node in list(graph.nodes):
        source = no_op_source(node)
        if source is not None:
            replace_by(node, source)


def replace_by(node: Node, source: Node) -> None:
    """Let the users of a node read its source, unless the node is a result's copy of a placeholder."""
    if source.op != "placeholder" or all(user.op != "output" for user in node.users):
        node.replace_all_uses_with(source)
        node.graph.erase_node(node)


def no_op_source(node: Node) -> Node | None:
    """Return the input that the node returns unchanged; None if the node has an effect."""
    condition = _CONDITIONS.get(op_name(node)) if node.op == "call_function" else None
    if condition is None:
        return None
    source = node.args[0]
    if isinstance(source, list | tuple):
        source = source[0] if len(source) == 1 else None
    if not isinstance(source, Node) or not _same_type(source, node) or not condition(arguments(node)):
        return None
    return source


def _same_type(source: Node, node: Node) -> bool:
    old, new = tensors(source), tensors(node)
    if len(old) != 1 or len(new) != 1:
        return False
    (a,), (b,) = old, new
    return a.dtype == b.dtype and a.device == b.device and same_shape(a, b)


def same_shape(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return true if two shapes are the same for all values of their symbols; adds no guard."""
    return tuple(map(str, a.shape)) == tuple(map(str, b.shape))


Condition = Callable[[dict[str, Any]], bool]


def _always(arguments: dict[str, Any]) -> bool:
    return True


def _plain_one(arguments: dict[str, Any]) -> bool:
    return isinstance(arguments["other"], int | float) and arguments["other"] == 1


def _inactive(arguments: dict[str, Any]) -> bool:
    return arguments["train"] is False or arguments["p"] == 0


# Operator -> true if it has no effect, provided that its result has the shape and dtype of its input.
_CONDITIONS: dict[str, Condition] = {
    f"aten.{name}": condition
    for condition, names in (
        (_always, "clone.default alias.default detach.default lift_fresh_copy.default lift_fresh.default"),
        (_always, "contiguous.default _to_copy.default to.dtype to.dtype_layout to.device to.other type_as.default"),
        (_always, "view.default reshape.default _unsafe_view.default flatten.using_ints view.dtype cat.default"),
        (_always, "expand.default squeeze.default squeeze.dim squeeze.dims repeat.default alias_copy.default"),
        (lambda a: a["step"] == 1, "slice.Tensor slice_copy.Tensor"),
        (lambda a: all(d in (i, i - len(a["dims"])) for i, d in enumerate(a["dims"])), "permute.default"),
        (lambda a: not any(a["pad"]), "constant_pad_nd.default pad.default"),
        (lambda a: not any(a["padding"]), "reflection_pad2d.default replication_pad2d.default"),
        (_plain_one, "mul.Tensor mul.Scalar div.Tensor div.Scalar"),
        (_inactive, "dropout.default"),
    )
    for name in names.split()
}


@in_each_graph
def merge_equal_nodes(graph: Graph) -> None:
    """Merge pure nodes with the same operator and arguments; linear in the size of the graph."""
    first: dict[Hashable, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not is_pure(node):
            continue
        key = (node.target, _key(node.args), tuple((k, _key(v)) for k, v in sorted(node.kwargs.items())))
        same = first.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _key(value: Any) -> Hashable:
    """Return a key that distinguishes values that are equal in Python: 1, 1.0 and True, and 0.0 and -0.0."""
    if isinstance(value, Node):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    return (type(value), repr(value))


def remove_unused(program: EdgeProgram) -> EdgeProgram:
    """Erase nodes and constants without users, also in bodies of control flow, while states stay."""
    for module in graph_modules(program.graph_module):
        drop_unused(module.graph)
    unused = [n for n in program.graph.find_nodes(op="placeholder") if not n.users and program.is_constant(n)]
    for node in unused:
        program.graph.erase_node(node)
    gone = {node.name for node in unused}
    return replace(
        program,
        constants={k: v for k, v in program.constants.items() if k not in gone},
        constant_names={k: v for k, v in program.constant_names.items() if k not in gone},
    )
