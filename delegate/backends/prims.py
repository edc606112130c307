"""A backend that gets its regions in Prims: for compilers, to whom a few simple operators are enough."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from torch.fx import GraphModule, Node
from torch.nn import Module

from delegate.backends.aot import PreprocessResult, Region, RegionRefused
from delegate.backends.asking import AskingBackend
from delegate.edge.node import is_compute
from delegate.edge.prims import PrimsDecomposer
from delegate.edge.verifier import PRIMS
from delegate.errors import DelegateError
from delegate.verdict import YES, Reason, Verdict, no


class PrimsBackend(AskingBackend):
    """An AOT half that sees Prims alone: `takes` is asked about them, and `compile` gets them.

    What torch does not take apart into Prims (products of matrices, convolutions, views, gathering) stays ATen's.
    Patterns are not claimed.
    """

    @abstractmethod
    def takes(self, node: Node) -> Verdict:
        """Return the verdict on a node in Prims."""

    @abstractmethod
    def compile(self, region: Region) -> PreprocessResult:
        """Compile a region in Prims; raises as `preprocess` does, of nodes of this region."""

    def ask(self, region: Region) -> Verdict:
        try:
            prims, _ = in_prims(region)
        except DelegateError as error:
            return no(Reason.OPERATOR, f"torch has no Prims of it: {error}")
        verdicts = (self.takes(node) for node in prims.calls if is_compute(node))
        return next((verdict for verdict in verdicts if not verdict), YES)

    def preprocess(self, region: Region) -> PreprocessResult:
        prims, origins = in_prims(region)
        try:
            return self.compile(prims)
        except RegionRefused as refusal:
            raise RegionRefused({origins.get(name, name): why for name, why in refusal.reasons.items()}) from refusal


def in_prims(region: Region) -> tuple[Region, Mapping[str, str]]:
    """A region decomposed to Prims, verified, and the name of each new node -> that of the node that it comes of.

    Inputs, constants and outputs keep their order; the region itself stays as it is.

    Raises:
        LoweringError: torch cannot take an operator apart.
        DialectError: what it makes of one is no Prims.
    """
    made = region.copy()
    decomposer, origins = PrimsDecomposer(), dict[str, str]()
    nodes = [node for node in made.calls if decomposer.applies(node)]
    names = [node.name for node in nodes]
    for name, parts in zip(names, decomposer.expand(nodes), strict=True):
        origins.update((part.name, name) for part in parts)
    for node in reversed(made.graph.nodes):
        if node.op == "call_function" and not node.users:
            made.graph.erase_node(node)
    PRIMS.check(GraphModule(Module(), made.graph))
    (results,) = made.graph.output_node().args
    assert isinstance(results, tuple | list)
    outputs = tuple(result for result in results if isinstance(result, Node))
    return replace(made, outputs=outputs, patterns=()), origins
