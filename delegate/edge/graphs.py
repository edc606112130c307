"""Graphs of all stages of edge: their walk, the removal of checks, unused nodes and metadata, and identities of nodes.

An identity is a module path, an operator and an ordinal. It is equal in every run; torch.fx's names are not.
"""

from __future__ import annotations

import copy
import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from delegate.edge.node import (
    SYMBOLIC,
    arguments,
    draws,
    is_number,
    module_path,
    op_name,
    read_elements,
    shape_text,
    tensors,
)
from delegate.edge.program import META_VALUE, EdgeProgram
from delegate.edge.torch_private import OpOverload, effect_of, schema_of

aten = torch.ops.aten
# Operators that check what the runtime or a kernel checks itself: types, ranges of symbols, factorizations (see
# `require_success`).
CHECKS = frozenset({
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
    "aten._linalg_check_errors.default",
})  # fmt: skip
# Assertions of the model, such as torch._check: of a number, and of a tensor of one element.
NUMBER_ASSERTION = "aten._assert_scalar.default"
ASSERTIONS = frozenset({NUMBER_ASSERTION, "aten._assert_async.default", "aten._assert_async.msg"})
_STRIDED = frozenset({aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default})
_CHECK_STATUS = aten._linalg_check_errors.default
META_IDENTITY = "identity"  # node.meta key of the name that stays the same from run to run, see `identity`
META_ORIGIN = "origin"  # node.meta key of the nodes of a decomposed operator: the name of its node
PRESERVED_METADATA = (META_VALUE, "nn_module_stack", "stack_trace", "custom", META_IDENTITY, META_ORIGIN)


def graph_modules(root: GraphModule) -> Iterator[GraphModule]:
    """Yield the module and the bodies of its control flow, outermost first."""
    yield root
    for node in root.graph.find_nodes(op="get_attr"):
        body = getattr(root, str(node.target), None)
        if isinstance(body, GraphModule):
            yield from graph_modules(body)


def is_random(root: GraphModule) -> bool:
    """Return true if a module or a body of its control flow draws random numbers."""
    return any(draws(node) for module in graph_modules(root) for node in module.graph.nodes)


def describe_graph(root: GraphModule) -> bytes:
    """Return a graph and its bodies as text: a line per node, with its operator, arguments, shapes and dtypes.

    Equal graphs have equal texts, regardless of their weights' values.
    """
    lines = []
    for module in graph_modules(root):
        for node in module.graph.nodes:
            results = [] if node.op == "output" else tensors(node)  # only loaded programs have its value
            lines.append(f"{node.format_node()} {[shape_text(t) for t in results]}\n")
    return "".join(lines).encode()


def remove_checks(root: GraphModule) -> list[torch.SymBool]:
    """Remove the operators that only check from a graph and its bodies, in place; assertions about elements stay.

    Returns:
        The assertions of the graph itself about sizes and numbers of inputs. (Those of bodies may differ between
        iterations.)
    """
    asserted: list[Any] = []
    for module in graph_modules(root):
        require_success(module.graph)
        for node in list(module.graph.nodes):
            if op_name(node) in CHECKS or (op_name(node) == NUMBER_ASSERTION and not any(read_elements(node.args[0]))):
                if module is root and isinstance(node.args[0], Node):
                    asserted.append(node.args[0].meta.get(META_VALUE))
                module.graph.erase_node(node)
            elif op_name(node) in ASSERTIONS:
                node.meta.setdefault(META_VALUE, None)  # torch's decompositions set none
    return [condition for condition in asserted if isinstance(condition, torch.SymBool)]


def require_success(graph: Graph) -> None:
    """Set `check_errors` of the factorizations whose status a node checks: their kernels then raise, as the check does.

    torch.linalg.inv, e.g., is linalg_inv_ex, which returns a status, and a check of this status.
    """
    for check in graph.find_nodes(op="call_function", target=_CHECK_STATUS):
        factorization = check.args[0].args[0]
        factorization.args, factorization.kwargs = (), {**arguments(factorization), "check_errors": True}


def has_effect(node: Node) -> bool:
    """Return true if the node must stay although nothing uses its results: it may write, raise an error, or print."""
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    return isinstance(target, OpOverload) and (acts(target) or arguments(node).get("check_errors") is True)


def acts(target: OpOverload) -> bool:
    """Return true if an operator writes to its arguments, returns nothing, or has an effect that torch was told of."""
    return bool(schema_of(target).is_mutable) or not schema_of(target).returns or effect_of(target) is not None


def drop_unused(graph: Graph) -> int:
    """Erase the nodes with unused results, in place and in one backward walk; return their number."""
    erased = 0
    for node in reversed(list(graph.nodes)):
        if not node.users and not has_effect(node):
            graph.erase_node(node)
            erased += 1
    return erased


def trim_metadata(graph: Graph) -> None:
    """Remove the metadata of each node that is not read later, in place."""
    for node in graph.nodes:
        node.meta = {key: node.meta[key] for key in PRESERVED_METADATA if key in node.meta}


def call(target: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator with torch, without regard to strides: a view may copy, and as_strided is row-major."""
    if target is aten.view.default:
        target = aten.reshape.default
    elif target in _STRIDED:
        args = (args[0].contiguous(), *args[1:])
    return target(*args, **kwargs)


def copy_node(graph: Graph, node: Node, mapping: Mapping[Node, Any]) -> Node:
    """Copy a node to the end of another graph, with its name and `meta`, and with arguments from `mapping`."""
    # Arguments are set afterwards: create_node warns of symbolic numbers that are no nodes, which regions hold.
    copied = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    copied.args = map_arg(node.args, mapping.__getitem__)
    copied.kwargs = map_arg(node.kwargs, mapping.__getitem__)
    copied.meta = copy.copy(node.meta)
    return copied


def extract_graph(
    placeholders: Iterable[Node],
    nodes: Iterable[Node],
    results: Iterable[Node],
    numbers: Mapping[Node, Any] | None = None,
) -> tuple[Graph, dict[Node, Any]]:
    """Return a separate graph of some nodes, and the copy of each node, with the same name and `meta`.

    Args:
        placeholders: nodes of any kind whose values become the inputs of the graph, in order.
        nodes: the nodes to copy, in topological order.
        results: the results of the graph, as one tuple.
        numbers: nodes among arguments that become plain or symbolic numbers.
    """
    graph, copies = Graph(), dict[Node, Any](numbers or {})
    for node in placeholders:
        copies[node] = graph.create_node("placeholder", node.name, name=node.name)
        copies[node].meta = copy.copy(node.meta)
    for node in nodes:
        copies[node] = copy_node(graph, node, copies)
    graph.output(tuple(copies[node] for node in results))
    return graph, copies


def outline_numbers(graph: Graph) -> None:
    """Replace symbolic numbers among the arguments of a region's graph by placeholders, in place.

    A trace of a node accepts a symbolic number only from another node, and `inline_numbers` removes them again.
    """
    places: dict[Any, Node] = {}

    def outline(argument: Any) -> Any:
        if not isinstance(argument, SYMBOLIC):
            return argument
        if argument.node.expr not in places:
            with graph.inserting_before(next(iter(graph.nodes))):
                places[argument.node.expr] = graph.placeholder("number")
            places[argument.node.expr].meta[META_VALUE] = argument
        return places[argument.node.expr]

    for node in list(graph.nodes):
        node.args, node.kwargs = map_aggregate((node.args, node.kwargs), outline)


def inline_numbers(graph: Graph) -> None:
    """Replace nodes that compute symbolic numbers by these numbers, in place."""
    numbers = [n for n in graph.nodes if n.op in ("placeholder", "call_function") and is_number(n)]
    values = {n: n.meta[META_VALUE] for n in numbers}
    for user in dict.fromkeys(user for n in numbers for user in n.users):
        user.args = map_arg(user.args, lambda n: values.get(n, n))
        user.kwargs = map_arg(user.kwargs, lambda n: values.get(n, n))
    for node in reversed(numbers):
        graph.erase_node(node)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic collector, which would walk the whole graph repeatedly as new objects accumulate.

    It took two fifths of the time to plan 100,000 nodes. It would free nothing, since all new objects stay in use.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def identify(program: EdgeProgram) -> EdgeProgram:
    """Set the identity of every call in the graphs of a program that has none yet.

    A pass preserves the identity of a node that it does not replace. A new node gets the next ordinal of its module and
    operator.
    """
    for module in graph_modules(program.graph_module):
        calls = [n for n in module.graph.nodes if n.op == "call_function"]
        taken = {n.meta[META_IDENTITY] for n in calls if META_IDENTITY in n.meta}
        ordinals: Counter[str] = Counter()
        for node in calls:
            if META_IDENTITY not in node.meta:
                node.meta[META_IDENTITY] = _next(f"{module_path(node)}:{op_name(node)}", ordinals, taken)
    return program


def _next(kind: str, ordinals: Counter[str], taken: set[str]) -> str:
    while (name := f"{kind}#{ordinals[kind]}") in taken:
        ordinals[kind] += 1
    taken.add(name)
    return name


def identity(node: Node) -> str:
    """Return the identity of a node, e.g. "encoder.layer.0:aten.linear.default#1"; its name if it has none."""
    return str(node.meta.get(META_IDENTITY, node.name))
