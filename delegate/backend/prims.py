"""AOT parts of compilers that need a few simple operators only: their regions are decomposed to Prims."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import Module

from delegate.backend.aot import PreprocessResult, Region, RegionRefused
from delegate.backend.asking import AskingBackend
from delegate.backend.tracing import TracingBackend
from delegate.edge.build import make_like
from delegate.edge.decompose import Decomposer, Table
from delegate.edge.graphs import inline_numbers, outline_numbers
from delegate.edge.node import is_compute, op_name, tensor
from delegate.edge.torch_private import OpOverload, decomposition_table
from delegate.edge.verifier import EDGE_RULES, Dialect, DialectRule
from delegate.errors import DelegateError
from delegate.verdict import YES, Reason, Verdict, no

_STRIDED = "aten.as_strided.default"  # torch's references decompose views to it; strides are irrelevant here
_ELEMENTWISE = frozenset(
    f"prims.{name}.default"
    for name in (
        "add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "div", "eq", "fmax", "fmin", "fmod", "gcd", "ge",
        "gt", "hypot", "igamma", "igammac", "le", "lt", "maximum", "minimum", "mul", "ne", "nextafter", "pow",
        "remainder", "shift_left", "shift_right_arithmetic", "sub", "where", "zeta",
    )
)  # fmt: skip
_VIEWS = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "as_strided", "detach", "alias", "select", "slice", "split", "split_with_sizes", "unbind", "unfold", "diagonal",
        "view", "reshape", "_unsafe_view", "chunk",
    )
)  # fmt: skip


@functools.cache
def _table() -> Table:
    """Return torch's decompositions of ATen to Prims, leaving out views."""
    return {
        op: how
        for op, how in decomposition_table.items()
        if isinstance(op, OpOverload) and op.namespace == "aten" and op.overloadpacket not in _VIEWS
    }


@dataclass(frozen=True)
class PrimsDecomposer(Decomposer):
    """A decomposer to Prims, in place; a node stays if its decomposition would depend on strides."""

    @property
    def table(self) -> Table:
        return _table()

    def accepts(self, body: Graph) -> bool:
        return all(op_name(node) != _STRIDED for node in body.nodes if node.op == "call_function")


def is_prim(op: OpOverload) -> bool:
    """Return true for an operator of Prims, and for one of ATen without a decomposition in torch."""
    return op.namespace == "prims" or op not in _table()


def broadcast_scalars(graph: Graph) -> list[tuple[Node, Node]]:
    """Broadcast operands of no dimension of elementwise Prims, in place, which torch's references leave to the Prim.

    Returns:
        Each new node, with the node that reads it.
    """
    added: list[tuple[Node, Node]] = []
    for node in list(graph.nodes):
        if op_name(node) not in _ELEMENTWISE or not (shape := list(tensor(node).shape)):
            continue
        for scalar in [a for a in node.all_input_nodes if not tensor(a).dim()]:
            with graph.inserting_before(node):
                whole = make_like(node, torch.ops.prims.broadcast_in_dim.default, (scalar, shape, []), {})
            node.replace_input_with(scalar, whole)
            added.append((whole, node))
    return added


def _operands(node: Node) -> list[torch.Tensor]:
    values: list[Any] = [a.meta["val"] for a in node.args if isinstance(a, Node)]
    return [value for value in values if isinstance(value, torch.Tensor)]


def one_shape(node: Node) -> bool:
    """Return true if the operands of an elementwise Prim need no broadcasting."""
    if op_name(node) not in _ELEMENTWISE:
        return True
    return len({tuple(map(str, t.shape)) for t in _operands(node)}) <= 1


def one_dtype(node: Node) -> bool:
    """Return true if the operands of an elementwise Prim need no promotion; the condition of `where` is none."""
    if op_name(node) not in _ELEMENTWISE:
        return True
    operands = _operands(node)[1:] if op_name(node) == "prims.where.default" else _operands(node)
    return len({t.dtype for t in operands}) <= 1


_PRIMS = (
    DialectRule(
        "operands of a Prim must have one shape, or be numbers", "broadcast them with prims.broadcast_in_dim", one_shape
    ),
    DialectRule("operands of a Prim must have one dtype", "convert them with prims.convert_element_type", one_dtype),
)
# Besides Prims: operators of ATen that torch does not decompose to Prims, and views that would depend on strides.
PRIMS = Dialect("Prims", (*EDGE_RULES, *_PRIMS), is_prim)


class PrimsBackend(AskingBackend, TracingBackend):
    """A tracing backend whose table has rows of Prims.

    - Operators that torch does not decompose into Prims (matrix products, convolutions, views, gathering) stay ATen's.
    - An operator of ATen that has a row of its own is preserved, unless the row refuses the node.
    - Patterns match nodes of ATen, which are preserved too.
    """

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...]:
        """Return the conditions of the operator's own row, or that each Prim needs a row."""
        return cls.table.conditions(op) or (f"{cls.library or cls.name} supports each Prim of its decomposition.",)

    def takes(self, node: Node) -> Verdict:
        """Return the verdict on a node in Prims, by default its row's verdict."""
        return TracingBackend.check(self, node)

    def compile(self, region: Region) -> PreprocessResult:
        """Compile a region in Prims; the default walks it.

        It raises the errors of `preprocess`, which name its nodes.
        """
        return TracingBackend.preprocess(self, region)

    def check(self, node: Node) -> Verdict:
        return YES if self._is_preserved(node) else super().check(node)

    def ask(self, region: Region) -> Verdict:
        try:
            prims, _ = in_prims(region)
        except DelegateError as error:
            return no(Reason.OPERATOR, f"torch cannot decompose it to Prims: {error}")
        verdicts = (self.takes(node) for node in prims.calls if is_compute(node))
        return next((verdict for verdict in verdicts if not verdict), YES)

    def preprocess(self, region: Region) -> PreprocessResult:
        own = {node.name for node in region.calls if self._is_preserved(node)}
        prims, origins = in_prims(region, own | {node.name for p in region.patterns for node in p.nodes})
        try:
            return self.compile(prims)
        except RegionRefused as refusal:
            raise RegionRefused({origins.get(name, name): why for name, why in refusal.reasons.items()}) from refusal

    def _is_preserved(self, node: Node) -> bool:
        """Return true if a row of the node's own operator accepts the node."""
        return self.table.get(op_name(node)) is not None and bool(TracingBackend.check(self, node))


def in_prims(region: Region, preserved: Set[str] = frozenset()) -> tuple[Region, Mapping[str, str]]:
    """Return a region decomposed to Prims, verified, and the name of each new node -> the name of its origin.

    Inputs, constants and outputs have the same order, and the region does not change. Sizes that depend on the inputs
    are symbolic numbers among the arguments, as in every region.

    Args:
        region: A region in edge dialect, whose operators are decomposed to Prims.
        preserved: the names of nodes that are not decomposed.

    Raises:
        LoweringError: torch cannot decompose an operator.
        DialectError: a decomposition of torch does not end in Prims.
    """
    result = region.copy()
    outline_numbers(result.graph)
    decomposer, origins = PrimsDecomposer(), dict[str, str]()
    nodes = [node for node in result.calls if node.name not in preserved and decomposer.applies(node)]
    targets = {node.target for node in result.calls if node.name in preserved}
    names = [node.name for node in nodes]
    for name, parts in zip(names, decomposer.expand(nodes), strict=True):
        origins.update((part.name, name) for part in parts)
    inline_numbers(result.graph)
    origins.update((added.name, origins.get(node.name, node.name)) for added, node in broadcast_scalars(result.graph))
    for node in reversed(result.graph.nodes):
        if node.op == "call_function" and not node.users:
            result.graph.erase_node(node)
    dialect = replace(PRIMS, allows=lambda op: is_prim(op) or op in targets)
    dialect.check(GraphModule(Module(), result.graph))
    (results,) = result.graph.output_node().args
    assert isinstance(results, tuple | list)
    return replace(result, outputs=tuple(output for output in results if isinstance(output, Node))), origins
