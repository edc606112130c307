"""Region: a partition cut out of its program, as its backend gets it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.value_ranges import ValueRanges

from delegate.edge.graphs import extracted
from delegate.edge.node import is_constant, symbolic_numbers, tensors
from delegate.edge.program import META_VALUE


@dataclass(frozen=True, slots=True)
class ClaimedPattern:
    """Nodes of a region that its backend claimed as one.

    Args:
        name: of the pattern, as the backend's claim called it.
        nodes: of the region's graph, in its order.
    """

    name: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Region:
    """A partition cut out of its program, as the backend gets it: every operator in the form that the backend took.

    Args:
        name: unique in the program, e.g. "xnnpack_0"; used for the delegate and in messages.
        graph: a graph of its own: placeholders (inputs, then constants), call_function nodes in topological order,
            and one output node whose argument is the tuple of results. Every node keeps its name and `meta`. A size
            among arguments that depends on the inputs is a torch.SymInt, never a node.
        inputs: the placeholders that are given at run time, in the order of the delegate's inputs; each is used.
        constants: placeholder -> its tensor, contiguous or not.
        outputs: the nodes whose values leave, in the order of the delegate's outputs; each gives one tensor.
        patterns: what was claimed as one.
        range_constraints: symbol of a size -> the least and greatest value that calls give it, for each symbol of the
            graph. It holds more than the sizes' own shape environment, where torch assumes that no size is 0 or 1.
    """

    name: str
    graph: Graph
    inputs: tuple[Node, ...]
    constants: Mapping[Node, torch.Tensor]
    outputs: tuple[Node, ...]
    patterns: tuple[ClaimedPattern, ...] = ()
    range_constraints: Mapping[Any, ValueRanges[Any]] = field(default_factory=dict)

    @property
    def calls(self) -> tuple[Node, ...]:
        """The nodes that call something, in the order of the graph."""
        return tuple(node for node in self.graph.nodes if node.op == "call_function")

    def copy(self) -> Region:
        """The same with a graph of its own, for a backend that rewrites it: the one that it was given must stay."""
        placeholders = (*self.inputs, *self.constants)
        return self._with(*extracted(placeholders, self.calls, self.outputs), self.inputs, self.outputs)

    def part(self, nodes: Sequence[Node]) -> Region:
        """Some of its nodes as a region, in the order of the graph, with all its inputs: they may tell sizes.

        Nodes that give tuples must be there together with their getitems.
        """
        inside = set(nodes)
        outside = dict.fromkeys(s for node in nodes for s in node.all_input_nodes if s not in inside)
        inputs = tuple(dict.fromkeys((*self.inputs, *(n for n in outside if n not in self.constants))))
        constants = tuple(n for n in outside if n in self.constants)
        outputs = tuple(n for n in nodes if any(user not in inside for user in n.users))
        return self._with(*extracted((*inputs, *constants), nodes, outputs), inputs, outputs)

    def _with(
        self, graph: Graph, copies: Mapping[Node, Node], inputs: Sequence[Node], outputs: Sequence[Node]
    ) -> Region:
        whole = (p for p in self.patterns if all(n in copies for n in p.nodes))
        return replace(
            self,
            graph=graph,
            inputs=tuple(copies[n] for n in inputs),
            constants={copies[n]: value for n, value in self.constants.items() if n in copies},
            outputs=tuple(copies[n] for n in outputs),
            patterns=tuple(replace(p, nodes=tuple(copies[n] for n in p.nodes)) for p in whole),
        )


def one_node_region(node: Node) -> Region:
    """A node of an edge graph, with the nodes that pick its results, as a region: for asking a library about it.

    What is constant is a constant there too, of zeros, as a check does not see its values. Numbers among the arguments
    are symbolic sizes. The graph of the node stays as it is.
    """
    picks = [user for user in node.users if user.target is operator.getitem]
    sources = dict.fromkeys(node.all_input_nodes)
    numbers = {n: n.meta["val"] for n in sources if not tensors(n)}
    given = [n for n in sources if n not in numbers]
    held = [n for n in given if is_constant(n)]
    inputs = [n for n in given if n not in held]
    results = picks or [node]
    graph, copies = extracted((*inputs, *held), (node, *picks), results, numbers)
    return Region(
        name=node.name,
        graph=graph,
        inputs=tuple(copies[n] for n in inputs),
        constants={copies[n]: torch.zeros(n.meta["val"].shape, dtype=n.meta["val"].dtype) for n in held},
        outputs=tuple(copies[n] for n in results),
        range_constraints=ranges_of_sizes((*sources, *results), {}),
    )


def ranges_of_sizes(nodes: Iterable[Node], known: Mapping[Any, Any]) -> dict[Any, ValueRanges[Any]]:
    """The range of every symbol in what nodes give.

    Args:
        nodes: of an edge graph.
        known: the range constraints of its program. Other symbols have the range of the shape environment. It begins
            at 0 if torch may only have assumed that the size is neither 0 nor 1.
    """
    found: dict[Any, ValueRanges[Any]] = {}
    for number in symbolic_numbers([node.meta.get(META_VALUE) for node in nodes]):
        for symbol in sorted(number.node.expr.free_symbols - found.keys(), key=str):
            assumed = number.node.shape_env.var_to_range[symbol]
            if symbol not in known and assumed.lower == 2 and not free_unbacked_symbols(symbol):
                assumed = ValueRanges(0, assumed.upper)
            found[symbol] = known.get(symbol, assumed)
    return found
