"""Canonical forms: one spelling for what operators mean, and one way to write their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from delegate.edge.graphs import graph_modules
from delegate.edge.node import op_name, tensor
from delegate.edge.program import EdgeProgram

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Canonicalize:
    """Spells transpositions as permute and static reshapes as view; arguments become positional, without defaults."""

    def __call__(self, program: EdgeProgram) -> EdgeProgram:
        for module in graph_modules(program.graph_module):
            for node in module.graph.nodes:
                if node.op == "call_function" and isinstance(node.target, OpOverload):
                    _plain_arguments(node, node.target)
                    _spell(node)
        return program


def _plain_arguments(node: Node, target: OpOverload) -> None:
    """Positional arguments by position, and none at the end that says what is the default anyway."""
    schema = [a for a in target._schema.arguments if not a.kwarg_only]
    args, kwargs = list(node.args), dict(node.kwargs)
    for argument in schema[len(args) :]:
        if argument.name not in kwargs and not (
            argument.has_default_value() and kwargs.keys() & {a.name for a in schema}
        ):
            break
        args.append(kwargs.pop(argument.name, argument.default_value))
    while args and _is_default(schema[len(args) - 1], args[-1]):
        args.pop()
    node.args = tuple(args)
    node.kwargs = {a.name: kwargs[a.name] for a in target._schema.arguments if a.name in kwargs}


def _is_default(argument: Any, value: Any) -> bool:
    if not argument.has_default_value() or isinstance(value, Node):
        return False
    default = argument.default_value
    if isinstance(value, list | tuple):
        return isinstance(default, list | tuple) and repr(list(value)) == repr(list(default))
    return type(value) is type(default) and bool(value == default)


def _spell(node: Node) -> None:
    permutation = _PERMUTATIONS.get(op_name(node))
    if permutation is not None:
        rank = tensor(node).dim()
        node.target, node.args = aten.permute.default, (node.args[0], permutation(rank, node))
    elif op_name(node) in _RESHAPES and all(isinstance(s, int) for s in tensor(node).shape):
        node.target, node.args = aten.view.default, (node.args[0], list(tensor(node).shape))
    elif op_name(node) == "aten.clamp.default" and tensor(node).dtype.is_floating_point:
        node.args = (node.args[0], *(float(b) if type(b) is int else b for b in node.args[1:]))
    elif op_name(node) == "aten.permute.default":
        order = node.args[1]
        assert isinstance(order, list | tuple)
        node.args = (node.args[0], [int(d) % len(order) for d in order])  # type: ignore[arg-type]


def _swap(rank: int, node: Node) -> list[int]:
    order = list(range(rank))
    first, second = int(node.args[1]), int(node.args[2])  # type: ignore[arg-type]
    if rank:
        order[first], order[second] = order[second], order[first]
    return order


def _reverse(rank: int, node: Node) -> list[int]:
    return list(range(rank))[::-1]


_PERMUTATIONS: dict[str, Callable[[int, Node], list[int]]] = {
    "aten.transpose.int": _swap,
    "aten.t.default": _reverse,
}
_RESHAPES = frozenset(
    f"aten.{name}"
    for name in ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int")
)
