"""Decomposition of compound operators for one backend, on trial for the support check or inside a region."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from delegate.edge.build import is_pure
from delegate.edge.decompose import Decomposer
from delegate.edge.graphs import META_IDENTITY, META_ORIGIN, extract_graph, identity, inline_numbers
from delegate.edge.node import (
    META_CONSTANT,
    is_compute,
    is_constant,
    is_size_arithmetic,
    is_static,
    op_name,
    tensors,
)
from delegate.edge.passes.pipeline import REGION_PASSES, TRIAL_PASSES, optimize
from delegate.edge.program import META_VALUE, EdgeInput, EdgeProgram
from delegate.edge.torch_private import OpOverload


def is_compound(node: Node) -> bool:
    """Return if the node's operator is outside core ATen and torch can decompose it."""
    return node.op == "call_function" and isinstance(node.target, OpOverload) and is_compound_operator(node.target)


@cache
def is_compound_operator(target: OpOverload[..., Any]) -> bool:
    """Return if an operator is outside core ATen and torch can decompose it."""
    return Decomposer().applies_to(target)


class DecompositionPolicy:
    """The compound operators that one backend preserves, and the decomposition of the others.

    Args:
        preserve_ops: preserved operators. A preserved one that the backend refuses is decomposed completely.
    """

    def __init__(self, preserve_ops: Set[str]) -> None:
        self._preserve_ops = frozenset(preserve_ops)
        self._decomposers: dict[str, Decomposer] = {}
        self._preserved: dict[Any, bool] = {}

    def preserves(self, node: Node) -> bool:
        """Return if the support check gets the node itself, not its decomposition."""
        preserved = self._preserved.get(node.target)
        if preserved is None:
            preserved = self._preserved[node.target] = op_name(node) in self._preserve_ops or not is_compound(node)
        return preserved

    def parts(self, node: Node) -> list[Node]:
        """Return the computing nodes of a compound node's decomposition, in a new graph.

        Nodes that depend only on constants are constants there, as they will be folded.

        Raises:
            LoweringError: torch cannot decompose the operator.
        """
        picks = [user for user in node.users if user.target is operator.getitem]
        placeholders = dict.fromkeys(node.all_input_nodes)
        graph, copies = extract_graph(placeholders, (node, *picks), picks or (node,))
        program = self.decompose(_program("parts", graph, {}), (copies[node],))
        program = optimize(program, TRIAL_PASSES)
        _assume_folded(program.graph)
        return [n for n in program.graph.nodes if is_compute(n) and not is_size_arithmetic(n)]

    def decompose(self, program: EdgeProgram, nodes: Iterable[Node]) -> EdgeProgram:
        """Decompose compound nodes, in place. Each new node has the name of its compound node as META_ORIGIN.

        Raises:
            LoweringError: torch cannot decompose an operator.
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


def decompose_region(
    graph: Graph, constants: Mapping[Node, torch.Tensor], compounds: Iterable[Node], policy: DecompositionPolicy
) -> EdgeProgram:
    """Decompose compound nodes of a region and simplify it, in place.

    Args:
        graph: The region's graph. Placeholders of numbers are replaced by symbolic numbers among the arguments.
        constants: placeholder -> its tensor.
        compounds: the nodes to decompose.
        policy: The backend's policy on preserved and decomposed operators.
    """
    program = _program("region", graph, {n.name: value for n, value in constants.items()})
    program = optimize(policy.decompose(program, compounds), REGION_PASSES)
    inline_numbers(program.graph)
    _distinct_results(program.graph)
    return program


def _program(name: str, graph: Graph, constants: Mapping[str, torch.Tensor]) -> EdgeProgram:
    inputs = tuple(EdgeInput(n.name, n.name) for n in graph.find_nodes(op="placeholder") if n.name not in constants)
    names = {name: name for name in constants}
    return EdgeProgram(name, GraphModule({}, graph), inputs, constants, names, {}, (), None, None, {})


def _assume_folded(graph: Graph) -> None:
    """Replace nodes that depend only on constants by placeholders of constants, in place."""
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


def _distinct_results(graph: Graph) -> None:
    """Clone results that are inputs or occur twice, in place, as each output of a delegate owns its memory."""
    output = graph.output_node()
    results: dict[Node, None] = {}  # in order
    for node in output.args[0]:  # type: ignore[union-attr]
        assert isinstance(node, Node)
        result = node
        if node.op == "placeholder" or node in results:
            with graph.inserting_before(output):
                result = graph.call_function(torch.ops.aten.clone.default, (node,))
            result.meta = dict(node.meta)
        results[result] = None
    output.args = (tuple(results),)
