"""AOT parts of compilers that need a few simple operators only: their regions are decomposed to Prims."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from torch.fx import GraphModule, Node
from torch.nn import Module

from delegate.backend.aot import PreprocessResult, Region, RegionRefused
from delegate.backend.asking import AskingBackend
from delegate.backend.tracing import TracingBackend
from delegate.edge.graphs import inline_numbers, outline_numbers
from delegate.edge.node import is_compute, op_name
from delegate.edge.prims import PrimsDecomposer, broadcast_scalars, is_prim
from delegate.edge.verifier import PRIMS
from delegate.errors import DelegateError
from delegate.verdict import YES, Reason, Verdict, no


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
