"""A backend whose library says itself what it takes: it is asked about every node, and its answers are kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import Node
from torch.utils._sympy.symbol import SymT, symbol_is_type

from delegate.backends.aot import Backend, RegionFailed, RegionRefused
from delegate.backends.region import Region, one_node_region
from delegate.backends.structure import structure
from delegate.edge.node import tensors
from delegate.verdict import Reason, Verdict, no


class AskingBackend(Backend):
    """An AOT half without a table: `ask` puts a node to the library as a region of its own.

    Attributes:
        library: its name, for people.
    """

    library: ClassVar[str]

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._answers: dict[Hashable, Verdict] = {}

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """That the library is asked, of every operator."""
        return (f"{cls.library} is asked about each node.",)

    @abstractmethod
    def ask(self, region: Region) -> Verdict:
        """Return the library's verdict on a region of one operator, with the nodes that pick its results.

        Constants of the region have the shape and dtype of the program's own, and hold zeros. It is asked once about
        regions of one structure, and must leave the region as it is. RegionRefused and RegionFailed are refusals, too,
        e.g. of `exported_program`, where the sizes of one operator do not follow from those of its inputs.
        """

    def check(self, node: Node) -> Verdict:
        """The library's answer, or an earlier one on the same operator, arguments, shapes and dtypes."""
        region = one_node_region(node)
        unknown = _symbols(region.outputs) - _symbols(region.inputs)
        if any(symbol_is_type(s, SymT.UNBACKED_INT) for s in unknown):
            return no(Reason.DYNAMIC_SHAPE, "the sizes of its results depend on data")
        if not all(isinstance(n.meta.get("val"), torch.Tensor) for n in region.outputs):
            return no(Reason.OPERATOR, "it gives no tensor that is used")
        key = structure(region, _type, names=False)
        if key not in self._answers:
            self._answers[key] = self._answer(region)
        return self._answers[key]

    def _answer(self, region: Region) -> Verdict:
        try:
            return self.ask(region)
        except RegionRefused as refusal:
            return no(Reason.REFUSED, "; ".join(refusal.reasons.values()))
        except RegionFailed as failure:
            return no(Reason.REFUSED, failure.reason)


def _symbols(nodes: Sequence[Node]) -> set[Any]:
    """The symbols in the sizes of what nodes give."""
    sizes: Iterator[Any] = (s for n in nodes for t in tensors(n) for s in t.shape)
    return {symbol for s in sizes if not isinstance(s, int) for symbol in s.node.expr.free_symbols}


def _type(constant: torch.Tensor) -> Hashable:
    return (constant.dtype, tuple(constant.shape))
