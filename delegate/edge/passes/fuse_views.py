"""Fusion of view chains: permutations are composed, only the last reshape stays, inverse pairs are removed."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from delegate.edge.graphs import graph_modules
from delegate.edge.node import op_name, tensor
from delegate.edge.passes import PassResult
from delegate.edge.passes.redundancy import same_shape
from delegate.edge.program import EdgeProgram

_RESHAPES = frozenset(
    f"aten.{name}"
    for name in (
        "view.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "unsqueeze.default",
        "reshape.default",
    )
)
_TAKES_SIZES = frozenset({"aten.view.default", "aten.reshape.default"})


@dataclass(frozen=True, slots=True)
class FuseViews:
    """A pass that shortens chains of permutes, and chains of views, squeezes and unsqueezes."""

    def __call__(self, program: EdgeProgram) -> PassResult:
        modified = False
        for module in graph_modules(program.graph_module):
            for node in list(module.graph.nodes):
                if node.op == "call_function" and _shorten(node):
                    modified = True
        return PassResult(program, modified)


def _shorten(node: Node) -> bool:
    """Let a node read the input of the view before it, which is shortened already; return true if it changed."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or source.op != "call_function":
        return False
    names = op_name(node), op_name(source)
    origin = source.args[0] if source.args else None
    if not isinstance(origin, Node):
        return False
    if names == ("aten.permute.default",) * 2:
        inner = source.args[1]
        order = [inner[d] % len(inner) for d in node.args[1]]  # type: ignore
        node.args = (origin, order)
        if order == list(range(len(order))):
            _replace(node, origin)
        return True
    if _RESHAPES.issuperset(names):
        if same_shape(tensor(origin), tensor(node)):
            return _replace(node, origin)
        if names[0] in _TAKES_SIZES:
            node.args = (origin, *node.args[1:])
            return True
    return False


def _replace(node: Node, origin: Node) -> bool:
    if origin.op == "placeholder" and any(user.op == "output" for user in node.users):
        return False  # the caller and a state each own their memory
    node.replace_all_uses_with(origin)
    node.graph.erase_node(node)
    return True
