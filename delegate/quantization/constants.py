"""Constant folding of nodes that depend only on parameters. torchao's own folding would also run writes to buffers."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from delegate.edge.node import draws


def fold(module: GraphModule, is_selected: Callable[[Node], bool]) -> None:
    """Replace nodes that depend only on parameters and unwritten buffers by constants, in place.

    Args:
        module: the module; its weights are its attributes.
        is_selected: selects the nodes to replace. Earlier nodes may be constants already when it is called.
    """
    fixed, values = set(_fixed_nodes(module)), dict[Node, Any]()
    names = _unused_names(module)
    for node in list(module.graph.nodes):
        if node in fixed and node.op == "call_function" and is_selected(node):
            value = _value(module, node, values)
            if isinstance(value, torch.Tensor):
                _replace(module, node, next(names), value)
    module.graph.eliminate_dead_code()
    module.recompile()


def _unused_names(module: GraphModule) -> Iterator[str]:
    """Return unused names of attributes: a second fold must not overwrite the constants of the first."""
    return (name for number in itertools.count() if not hasattr(module, name := f"_constant_{number}"))


def _fixed_nodes(module: GraphModule) -> Iterator[Node]:
    written = set(_written_attributes(module))
    fixed = set[Node]()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            known = str(node.target) not in written and isinstance(_attribute(module, node), torch.Tensor)
        else:
            known = _is_pure(node) and bool(node.all_input_nodes) and fixed.issuperset(node.all_input_nodes)
        if known:
            fixed.add(node)
            yield node


def _is_pure(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return not (draws(node) or node.target._schema.is_mutable)
    return isinstance(node.target, OpOverloadPacket) or node.target is operator.getitem


def _written_attributes(module: GraphModule) -> Iterator[str]:
    """Yield the attributes that a node of the graph writes to, directly or through a view."""
    for node in module.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node):
                    yield str(_origin(value).target)


def _origin(node: Node) -> Node:
    """Return the node that a node is a view of, or the node itself."""
    while isinstance(node.target, OpOverload) and node.args and isinstance(node.args[0], Node):
        returns = node.target._schema.returns
        if not returns or returns[0].alias_info is None:
            break
        node = node.args[0]
    return node


def _value(module: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
    if node not in values:
        if node.op == "get_attr":
            values[node] = _attribute(module, node)
        else:
            args, kwargs = map_arg((node.args, node.kwargs), lambda source: _value(module, source, values))
            with torch.no_grad():
                values[node] = cast(Callable[..., Any], node.target)(*args, **kwargs)
    return values[node]


def _attribute(module: GraphModule, node: Node) -> Any:
    return operator.attrgetter(str(node.target))(module)


def _replace(module: GraphModule, node: Node, name: str, value: torch.Tensor) -> None:
    module.register_buffer(name, value.detach())
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)
