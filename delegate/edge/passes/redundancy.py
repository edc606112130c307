"""Removal of redundant nodes: operators without effect, repeated computations, and nodes without users."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from delegate.edge.build import is_pure
from delegate.edge.graphs import drop_unused, graph_modules
from delegate.edge.node import arguments, op_name, tensors
from delegate.edge.passes import PassResult
from delegate.edge.program import EdgeProgram


@dataclass(frozen=True, slots=True)
class NoOpRemoval:
    """A pass that removes copies, casts, reshapes, slices and arithmetic without effect.

    A copy of a placeholder that is a result stays: the caller and a state each own their memory.
    """

    def __call__(self, program: EdgeProgram) -> PassResult:
        removed = sum(_remove(module) for module in graph_modules(program.graph_module))
        return PassResult(program, removed > 0)


def _remove(module: GraphModule) -> int:
    removed = 0
    for node in list(module.graph.nodes):
        source = no_op_source(node)
        if source is not None and not (source.op == "placeholder" and any(u.op == "output" for u in node.users)):
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)
            removed += 1
    return removed


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


@dataclass(frozen=True, slots=True)
class CommonSubexpressionElimination:
    """A pass that merges pure nodes with the same operator and arguments; linear in the size of the graph."""

    def __call__(self, program: EdgeProgram) -> PassResult:
        merged = sum(_merge(module.graph) for module in graph_modules(program.graph_module))
        return PassResult(program, merged > 0)


def _merge(graph: Graph) -> int:
    merged = 0
    first: dict[Hashable, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not is_pure(node):
            continue
        key = (node.target, _key(node.args), tuple((k, _key(v)) for k, v in sorted(node.kwargs.items())))
        same = first.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
            merged += 1
    return merged


def _key(value: Any) -> Hashable:
    """Return a key that distinguishes values that are equal in Python: 1, 1.0 and True, and 0.0 and -0.0."""
    if isinstance(value, Node):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    return (type(value), repr(value))


@dataclass(frozen=True, slots=True)
class DeadCodeElimination:
    """A pass that erases nodes and constants without users, also in bodies of control flow, while states stay."""

    def __call__(self, program: EdgeProgram) -> PassResult:
        dropped = sum(drop_unused(module.graph) for module in graph_modules(program.graph_module))
        unused = [n for n in program.graph.find_nodes(op="placeholder") if not n.users and program.is_constant(n)]
        for node in unused:
            program.graph.erase_node(node)
        gone = {node.name for node in unused}
        pruned = replace(
            program,
            constants={k: v for k, v in program.constants.items() if k not in gone},
            constant_names={k: v for k, v in program.constant_names.items() if k not in gone},
        )
        return PassResult(pruned, dropped > 0 or bool(gone))
