"""Region: the extracted graph of one partition, which its backend compiles, and its structure as a value."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from delegate.edge.graphs import extract_graph
from delegate.edge.keys import NotCacheable, digests_of, list_facts_of_sizes
from delegate.edge.node import SYMBOLIC, is_constant, symbolic_numbers, tensors
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import ShapeEnvGuardError, ValueRanges, bound_sympy

# Raised by a comparison of a dynamic size, or of one that depends on data, in a check or a compile.
SIZE_DECIDED = (ShapeEnvGuardError, symbolic_shapes.GuardOnDataDependentSymNode)


@dataclass(frozen=True, slots=True)
class ClaimedPattern:
    """Nodes of a region that match a pattern of its backend.

    Args:
        name: the pattern's name in the backend's claim.
        nodes: nodes of the region's graph, in its order.
    """

    name: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Region:
    """The extracted graph of one partition, with every operator in the form that the backend accepted.

    Args:
        name: a name that is unique in the program, e.g. "xnnpack_0"; also the delegate's name.
        graph: a separate graph: placeholders (inputs, then constants), call_function nodes in topological order, and
            one output node whose argument is the tuple of results. Nodes keep their names and `meta`. A size among
            arguments that depends on the inputs is a torch.SymInt, never a node.
        inputs: the placeholders of the delegate's inputs, in their order; each has users.
        constants: placeholder -> its tensor, contiguous or not.
        outputs: the nodes of the delegate's outputs, in their order; each has one tensor as value.
        patterns: the pattern matches that the backend claimed.
        range_constraints: symbol of a size -> its least and greatest value in calls, for each symbol of the graph. They
            include 0 and 1, which torch excludes in the sizes' own shape environment.
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
        """Return the nodes that call an operator, in the order of the graph."""
        return tuple(node for node in self.graph.nodes if node.op == "call_function")

    @cached_property
    def structure(self) -> Hashable:
        """Operators, arguments, shapes, dtypes, size ranges, borders and patterns, as a value.

        Regions of one structure differ only in names, and in the content of their constants.
        """
        place: dict[Node, int] = {}
        rows = tuple(_rows(self.graph, place, self.constants))
        patterns = tuple((p.name, tuple(place[n] for n in p.nodes)) for p in self.patterns)
        borders = (tuple(place[n] for n in nodes) for nodes in (self.inputs, self.outputs))
        return (rows, *borders, patterns, _texts(self.range_constraints))

    def range_of(self, size: int | torch.SymInt) -> tuple[int, int | None]:
        """Return the least and the greatest value of a size in calls; None for one without a greatest value.

        Args:
            size: a size in the shape of a node, or one among its arguments.
        """
        return size_range(size, self.range_constraints)

    def copy(self) -> Region:
        """Return the same region with its own graph, since a backend that rewrites the graph needs one."""
        placeholders = (*self.inputs, *self.constants)
        return self._with(*extract_graph(placeholders, self.calls, self.outputs), self.inputs, self.outputs)

    def part(self, nodes: Sequence[Node]) -> Region:
        """Return some of the nodes as a region.

        The nodes are in the order of the graph, and a node with several results needs its getitems. Inputs that the
        nodes do not use stay if there are dynamic sizes, which may depend on any input.
        """
        inside = set(nodes)
        outside = dict.fromkeys(s for node in nodes for s in node.all_input_nodes if s not in inside)
        kept = self.inputs if self.range_constraints else [n for n in self.inputs if n in outside]
        inputs = tuple(dict.fromkeys((*kept, *(n for n in outside if n not in self.constants))))
        constants = tuple(n for n in outside if n in self.constants)
        outputs = tuple(n for n in nodes if any(user not in inside for user in n.users))
        return self._with(*extract_graph((*inputs, *constants), nodes, outputs), inputs, outputs)

    def with_outputs(self, nodes: Sequence[Node]) -> Region:
        """Return the same region with other outputs: nodes that have one tensor each."""
        placeholders = (*self.inputs, *self.constants)
        return self._with(*extract_graph(placeholders, self.calls, nodes), self.inputs, nodes)

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


def graph_structure(graph: Graph) -> Hashable:
    """Return what support checks read of an edge graph, as a value.

    These are operators, arguments, shapes, dtypes, size ranges, and which inputs are constants.
    """
    constants = tuple(number for number, node in enumerate(graph.nodes) if is_constant(node))
    return (tuple(_rows(graph, {}, {})), constants, _texts(ranges_of_sizes(graph.nodes, {})))


def one_node_region(node: Node) -> Region:
    """Return a region of one node of an edge graph and its getitems, for a query about this node.

    Constants of the node are constants of zeros, because a check does not read their values, and numbers among the
    arguments are symbolic sizes. The graph of the node is not changed.
    """
    picks = [user for user in node.users if user.target is operator.getitem]
    sources = dict.fromkeys(node.all_input_nodes)
    numbers = {n: n.meta["val"] for n in sources if not tensors(n)}
    given = [n for n in sources if n not in numbers]
    held = [n for n in given if is_constant(n)]
    inputs = [n for n in given if n not in held]
    results = picks or [node]
    graph, copies = extract_graph((*inputs, *held), (node, *picks), results, numbers)
    return Region(
        name=node.name,
        graph=graph,
        inputs=tuple(copies[n] for n in inputs),
        constants={copies[n]: torch.zeros(n.meta["val"].shape, dtype=n.meta["val"].dtype) for n in held},
        outputs=tuple(copies[n] for n in results),
        range_constraints=ranges_of_sizes((*sources, *results), {}),
    )


def ranges_of_sizes(nodes: Iterable[Node], known: Mapping[Any, Any]) -> dict[Any, ValueRanges[Any]]:
    """Return the range of every symbol in the values of nodes.

    Args:
        nodes: nodes of an edge graph.
        known: the range constraints of its program. Any other symbol has the range of the shape environment;
            it starts at 0 if torch may only have assumed that the size is neither 0 nor 1.
    """
    found: dict[Any, ValueRanges[Any]] = {}
    for number in symbolic_numbers([node.meta.get(META_VALUE) for node in nodes]):
        for symbol in sorted(number.node.expr.free_symbols - found.keys(), key=str):
            assumed = number.node.shape_env.var_to_range[symbol]
            if symbol not in known and assumed.lower == 2 and not free_unbacked_symbols(symbol):
                assumed = ValueRanges(0, assumed.upper)
            found[symbol] = known.get(symbol, assumed)
    return found


def size_range(size: int | torch.SymInt, ranges: Mapping[Any, ValueRanges[Any]]) -> tuple[int, int | None]:
    """Return the least and the greatest value of a size, from the ranges of its symbols; see `Region.range_of`."""
    if isinstance(size, int):
        return size, size
    bounds = bound_sympy(size.node.expr, dict(ranges))
    return int(bounds.lower), int(bounds.upper) if bounds.upper.is_Integer else None


def shape_without(node: Node, symbol: Any, ranges: Mapping[Any, ValueRanges[Any]]) -> list[int]:
    """Return the shape of a node in a call in which one dynamic size is 0, and the others 2 or their minimum."""
    sizes = {s: 0 if s is symbol else int(max(known.lower, 2)) for s, known in ranges.items()}
    return [s if isinstance(s, int) else int(s.node.expr.subs(sizes)) for s in node.meta[META_VALUE].shape]


def address(constant: torch.Tensor) -> Hashable:
    """Return the address of a constant, which identifies it in this process."""
    return (id(constant), constant.data_ptr())


def content_of(region: Region, constant: Callable[[torch.Tensor], Hashable] = address) -> Hashable:
    """Return all of a region but its name, as a value.

    Args:
        region: the region.
        constant: returns a value that identifies a constant.
    """
    names = tuple(node.name for node in region.graph.nodes)  # refusals contain them
    constants = tuple(constant(region.constants[node]) for node in region.graph.nodes if node in region.constants)
    return (region.structure, names, constants)


def region_key(region: Region) -> str | None:
    """Return a digest of all that the blob of a region depends on, which is the same in every process.

    Returns None if the bytes of a constant cannot be read, as in a sparse tensor.
    """
    try:
        digests = digests_of(region.constants.values())
    except NotCacheable:
        return None
    content = content_of(region, lambda constant: digests[id(constant)])
    return hashlib.sha256(repr((content, sorted(set(list_facts_of_sizes(_sizes(region)))))).encode()).hexdigest()


def _rows(graph: Graph, place: dict[Node, int], constants: Mapping[Node, torch.Tensor]) -> Iterator[Hashable]:
    """Yield the operator, the arguments and the results of each node, and number the nodes."""
    for node in graph.nodes:
        place[node] = len(place)
        constant = constants.get(node)
        yield (node.op, node.target if node.op == "call_function" else None)
        yield (_plain(node.args, place), _plain(tuple(sorted(node.kwargs.items())), place))
        yield _shapes(node) if constant is None else (constant.dtype, tuple(constant.shape))


def _texts(ranges: Mapping[Any, Any]) -> Hashable:
    return tuple(sorted((str(symbol), str(known)) for symbol, known in ranges.items()))


def _shapes(node: Node) -> Hashable:
    return tuple((t.dtype, tuple(map(str, t.shape))) for t in tensors(node)) if META_VALUE in node.meta else None


def _plain(value: Any, place: Mapping[Node, int]) -> Hashable:
    if isinstance(value, Node):
        return ("node", place[value])
    if isinstance(value, list | tuple):
        return tuple(_plain(item, place) for item in value)
    if isinstance(value, SYMBOLIC):
        return ("size", str(value))
    return (type(value), repr(value))


def _sizes(region: Region) -> Iterator[Any]:
    """Yield all sizes of a region, and the numbers among its arguments."""
    yield from (size for node in region.graph.nodes for t in tensors(node) for size in t.shape)
    yield from (arg for node in region.calls for arg in _leaves((node.args, node.kwargs)))


def _leaves(argument: Any) -> Iterator[Any]:
    if isinstance(argument, Mapping):
        argument = tuple(argument.values())
    if isinstance(argument, list | tuple):
        for item in argument:
            yield from _leaves(item)
    else:
        yield argument
