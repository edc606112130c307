"""Forms: compound operators whole or in parts, as a backend wants them, tried beside the graph or made in a region."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from delegate.edge.build import is_pure
from delegate.edge.decompose import Decomposer
from delegate.edge.graphs import META_IDENTITY, META_ORIGIN, extracted
from delegate.edge.identity import identity
from delegate.edge.node import META_CONSTANT, is_compute, is_constant, is_static, op_name, tensors
from delegate.edge.passes.canonicalize import Canonicalize
from delegate.edge.passes.common_subexpressions import CommonSubexpressionElimination
from delegate.edge.passes.dead_code import DeadCodeElimination
from delegate.edge.passes.fold_constants import ConstantFolding
from delegate.edge.passes.fuse_views import FuseViews
from delegate.edge.passes.no_ops import NoOpRemoval
from delegate.edge.passes.pipeline import optimize
from delegate.edge.passes.result import Pass
from delegate.edge.program import META_VALUE, EdgeInput, EdgeProgram
from delegate.partitioner.numbers import is_number, is_size_arithmetic

_TRIED: tuple[Pass, ...] = (
    Canonicalize(),
    NoOpRemoval(),
    FuseViews(),
    NoOpRemoval(),
    CommonSubexpressionElimination(),
    DeadCodeElimination(),
)
_MADE: tuple[Pass, ...] = (*_TRIED[:2], ConstantFolding(), *_TRIED[2:])


def is_compound(node: Node) -> bool:
    """Whether the node's operator is not core ATen and torch can take it apart."""
    return node.op == "call_function" and isinstance(node.target, OpOverload) and _is_compound(node.target)


@cache
def _is_compound(target: OpOverload[..., Any]) -> bool:
    return Decomposer().applies_to(target)


class Forms:
    """The form in which one backend wants compound operators.

    Args:
        preserve_ops: that it wants whole. One that it refused whole is taken apart, and so are those within it.
    """

    def __init__(self, preserve_ops: Set[str]) -> None:
        self._preserve_ops = frozenset(preserve_ops)
        self._decomposers: dict[str, Decomposer] = {}
        self._whole: dict[Any, bool] = {}

    def wants_whole(self, node: Node) -> bool:
        """Whether the backend is to be asked about the operator as it stands."""
        found = self._whole.get(node.target)
        if found is None:
            found = self._whole[node.target] = op_name(node) in self._preserve_ops or not is_compound(node)
        return found

    def parts(self, node: Node) -> list[Node]:
        """The nodes that compute, of those that a compound one is made of, in a graph of their own.

        What depends on constants alone is a constant there: it will be computed ahead of time.

        Raises:
            LoweringError: torch cannot take the operator apart.
        """
        picks = [user for user in node.users if user.target is operator.getitem]
        placeholders = dict.fromkeys(node.all_input_nodes)
        graph, copies = extracted(placeholders, (node, *picks), picks or (node,))
        program = self.apart(_program("parts", graph, {}), (copies[node],))
        made = optimize(program, _TRIED)
        _assume_folded(made.graph)
        return [n for n in made.graph.nodes if is_compute(n) and not is_size_arithmetic(n)]

    def apart(self, program: EdgeProgram, nodes: Iterable[Node]) -> EdgeProgram:
        """Take compound nodes apart, in place. What is made of one has its name as META_ORIGIN.

        Raises:
            LoweringError: torch cannot take an operator apart.
        """
        by_op: dict[str, list[Node]] = {}
        for node in nodes:
            by_op.setdefault(op_name(node), []).append(node)
        for op, alike in by_op.items():
            names = [(node.name, identity(node)) for node in alike]
            for (origin, own), parts in zip(names, self._decomposer(op).expand(alike), strict=True):
                for number, part in enumerate(parts):
                    part.meta[META_ORIGIN] = origin
                    part.meta[META_IDENTITY] = f"{own}/{number}:{op_name(part)}"
        return program

    def _decomposer(self, op: str) -> Decomposer:
        if op not in self._decomposers:
            self._decomposers[op] = Decomposer(self._preserve_ops - {op})
        return self._decomposers[op]


def formed(
    graph: Graph, constants: Mapping[Node, torch.Tensor], compounds: Iterable[Node], forms: Forms
) -> EdgeProgram:
    """A graph that was cut out, with compound operators taken apart, then simplified; in place.

    Args:
        graph: its placeholders may be numbers, which become symbolic numbers among the arguments.
        constants: placeholder -> its tensor.
        compounds: the nodes to take apart.
        forms: of the backend.
    """
    program = _program("region", graph, {n.name: value for n, value in constants.items()})
    program = optimize(forms.apart(program, compounds), _MADE)
    _inline_numbers(program.graph)
    _distinct_results(program.graph)
    return program


def _program(name: str, graph: Graph, constants: Mapping[str, torch.Tensor]) -> EdgeProgram:
    inputs = tuple(EdgeInput(n.name, n.name) for n in graph.find_nodes(op="placeholder") if n.name not in constants)
    names = {name: name for name in constants}
    return EdgeProgram(name, GraphModule({}, graph), inputs, constants, names, {}, (), None, None, {})


def _assume_folded(graph: Graph) -> None:
    """Put placeholders of constants in place of what depends on constants alone, in place."""
    for node in list(graph.nodes):
        known = isinstance(node.target, OpOverload) and node.target.namespace in ("aten", "prims")
        if not known or not all(map(is_constant, node.all_input_nodes)) or not is_pure(node) or not is_static(node):
            continue
        if len(tensors(node)) == 1:
            with graph.inserting_before(node):
                constant = graph.placeholder(node.name)
            constant.meta = {META_VALUE: node.meta[META_VALUE], META_CONSTANT: True}
            node.replace_all_uses_with(constant)
            graph.erase_node(node)


def _inline_numbers(graph: Graph) -> None:
    """Put symbolic numbers in place of the nodes that compute them, in place."""
    numbers = [n for n in graph.nodes if n.op in ("placeholder", "call_function") and is_number(n)]
    values = {n: n.meta[META_VALUE] for n in numbers}
    for user in dict.fromkeys(user for n in numbers for user in n.users):
        user.args = torch.fx.node.map_arg(user.args, lambda n: values.get(n, n))
        user.kwargs = torch.fx.node.map_arg(user.kwargs, lambda n: values.get(n, n))
    for node in reversed(numbers):
        graph.erase_node(node)


def _distinct_results(graph: Graph) -> None:
    """Results that are inputs, or given twice, become copies, in place: each output of a delegate is its own."""
    output = graph.output_node()
    results: dict[Node, None] = {}  # in order
    for node in output.args[0]:  # type: ignore[union-attr]
        assert isinstance(node, Node)
        found = node
        if node.op == "placeholder" or node in results:
            with graph.inserting_before(output):
                found = graph.call_function(torch.ops.aten.clone.default, (node,))
            found.meta = dict(node.meta)
        results[found] = None
    output.args = (tuple(results),)
