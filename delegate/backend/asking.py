"""Backends whose library checks every node: their answers are cached."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from delegate.backend.aot import Backend, RegionFailed, RegionRefused
from delegate.backend.region import Region, one_node_region
from delegate.edge.node import tensors
from delegate.verdict import Reason, Verdict, no


class AskingBackend(Backend):
    """An AOT part without a table: `ask` queries the library about a node as a region of its own.

    Attributes:
        library: the name of the library, for messages.
    """

    library: str

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._answers: dict[Hashable, Verdict] = {}

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """Return the same condition for every operator: the library is queried about each node."""
        return (f"{cls.library} is queried about each node.",)

    @abstractmethod
    def ask(self, region: Region) -> Verdict:
        """Return the library's verdict on a region of one operator, with the nodes that pick its results.

        Constants of the region have the shape and dtype of the program's own, and hold zeros. `ask` is called once for
        regions of one structure, and must not change the region. RegionRefused and RegionFailed are refusals, too.
        `exported_program` raises them if the sizes of one operator do not follow from the sizes of its inputs.
        """

    def check(self, node: Node) -> Verdict:
        """Return the library's answer, or its cached answer for the same operator, arguments, shapes and dtypes.

        An answer whose message names a node is only for nodes of these names.
        """
        region = one_node_region(node)
        unknown = _symbols(region.outputs) - _symbols(region.inputs)
        if any(free_unbacked_symbols(s) for s in unknown):
            return no(Reason.DYNAMIC_SHAPE, "the sizes of its results depend on data")
        if not all(isinstance(n.meta.get("val"), torch.Tensor) for n in region.outputs):
            return no(Reason.OPERATOR, "it returns no tensor that is used")
        names = tuple(n.name for n in region.graph.nodes if n.op != "output")
        for key in (region.structure, (region.structure, names)):
            if key in self._answers:
                return self._answers[key]
        answer = self._answer(region)
        named = any(re.search(rf"\b{re.escape(name)}\b", answer.message) for name in names)
        self._answers[(region.structure, names) if named else region.structure] = answer
        return answer

    def _answer(self, region: Region) -> Verdict:
        try:
            return self.ask(region)
        except RegionRefused as refusal:
            return no(Reason.REFUSED, "; ".join(refusal.reasons.values()))
        except RegionFailed as failure:
            return no(Reason.REFUSED, failure.reason)


def _symbols(nodes: Sequence[Node]) -> set[Any]:
    """Return the symbols in the sizes of nodes' results."""
    sizes: Iterator[Any] = (s for n in nodes for t in tensors(n) for s in t.shape)
    return {symbol for s in sizes if not isinstance(s, int) for symbol in s.node.expr.free_symbols}
