"""What a graph computes of parameters alone, made constants. torchao's own folding would run what writes to buffers."""

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


def fold(module: GraphModule, wanted: Callable[[Node], bool]) -> None:
    """Make constants, in place, of nodes that depend on nothing but parameters, and buffers that nobody writes to.

    Args:
        module: whose weights are attributes of it.
        wanted: says which of these nodes; it is asked while those before them may be constants already.
    """
    fixed, values = set(_fixed(module)), dict[Node, Any]()
    names = _unused_names(module)
    for node in list(module.graph.nodes):
        if node in fixed and node.op == "call_function" and wanted(node):
            value = _value(module, node, values)
            if isinstance(value, torch.Tensor):
                _replace(module, node, next(names), value)
    module.graph.eliminate_dead_code()
    module.recompile()


def _unused_names(module: GraphModule) -> Iterator[str]:
    """Names of attributes that the module lacks: a second fold must not overwrite what the first one made."""
    return (name for number in itertools.count() if not hasattr(module, name := f"_constant_{number}"))


def _fixed(module: GraphModule) -> Iterator[Node]:
    written = set(_written(module))
    found = set[Node]()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            known = str(node.target) not in written and isinstance(_attribute(module, node), torch.Tensor)
        else:
            known = _is_pure(node) and bool(node.all_input_nodes) and found.issuperset(node.all_input_nodes)
        if known:
            found.add(node)
            yield node


def _is_pure(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return not (draws(node) or node.target._schema.is_mutable)
    return isinstance(node.target, OpOverloadPacket) or node.target is operator.getitem


def _written(module: GraphModule) -> Iterator[str]:
    """The attributes that something in the graph writes to, or to a view of."""
    for node in module.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node):
                    yield str(_origin(value).target)


def _origin(node: Node) -> Node:
    """What a node is a view of, itself if of nothing."""
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
        made = module.graph.get_attr(name)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
