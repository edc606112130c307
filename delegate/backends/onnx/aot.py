"""The AOT half that backends on ONNX Runtime share: support from two tables, lowering by torch's ONNX exporter."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping, Set
from functools import cache
from typing import ClassVar

import torch
from torch.fx import Node

from delegate.backends.aot import Backend, PreprocessResult, Region, RegionRefused
from delegate.backends.exported import exported_program
from delegate.backends.lowering import anything, conditions, of_dtypes
from delegate.backends.onnx.assignment import left_to_cpu
from delegate.backends.onnx.model import ExportedModel, to_onnx
from delegate.backends.onnx.translations import TRANSLATIONS, rows_of
from delegate.backends.onnx.translations.row import Translation
from delegate.edge.node import op_name
from delegate.verdict import YES, Reason, Verdict, no

Dtypes = frozenset[torch.dtype]
# The ONNX operators that a provider runs, and the dtypes of all their tensors. Of an operator whose modes differ, those
# beyond the plain one have entries of their own: "Pad(edge)", "ScatterElements(max)".
Operators = Mapping[str, Dtypes]


class OnnxBackend(Backend):
    """A backend on one provider of ONNX Runtime.

    It takes an operator if a row in `translations.TRANSLATIONS` says that the exporter is right, and `operators` has
    every ONNX operator of that row. The provider has the last word on each region: what it would leave to the CPU is
    planned elsewhere.
    """

    provider: ClassVar[str]
    operators: ClassVar[Operators]
    limits: ClassVar[Mapping[str, Callable[[Node], Verdict]]] = {}  # operator -> what else the provider asks of a node

    @property
    def preserve_ops(self) -> Set[str]:
        return frozenset(row.op for row in self.rows().values() if row.keep)

    @classmethod
    @cache
    def rows(cls) -> Mapping[str, Translation]:
        """What each operator becomes that the provider runs."""
        return rows_of(cls.operators)

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """What the exporter makes of the operator, on which dtypes the provider runs it, and what the row asks."""
        row = cls.rows().get(op)
        if row is None:
            return None
        dtypes = frozenset.intersection(*(cls.operators[o] for o in row.onnx)) | row.beside
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        made = f"As ONNX's {', '.join((*row.onnx, *row.between))}."
        limit = cls.limits.get(op)
        asked = () if limit is None else conditions(limit)
        return (made, f"All tensors are of {names}.", *conditions(row.check), *asked)

    def check(self, node: Node) -> Verdict:
        if node.target is operator.getitem:
            return YES
        row = self.rows().get(op_name(node))
        if row is None:
            return self._no_row(op_name(node))
        dtypes = frozenset.intersection(*(self.operators[o] for o in row.onnx)) | row.beside
        return of_dtypes(node, dtypes, self.provider) and row.check(node) and self.limits.get(row.op, anything)(node)

    def _no_row(self, op: str) -> Verdict:
        if op not in TRANSLATIONS:
            return no(Reason.OPERATOR, f"{self.name} has no lowering of {op}")
        missing = sorted(TRANSLATIONS[op][0].needs - self.operators.keys())
        return no(Reason.OPERATOR, f"{self.provider} does not run ONNX's {', '.join(missing)}")

    def preprocess(self, region: Region) -> PreprocessResult:
        return self.compile(to_onnx(exported_program(region), self.rows()), region)

    def refuse_leftovers(self, exported: ExportedModel) -> None:
        """Ask the library what it would leave to the CPU; raises RegionRefused if that is anything."""
        left = left_to_cpu(exported, self.settings(), self.provider)
        if left:
            raise RegionRefused(left)

    @abstractmethod
    def settings(self) -> object:
        """SessionOptions on the provider, as the options of the backend want it."""

    @abstractmethod
    def compile(self, exported: ExportedModel, region: Region) -> PreprocessResult:
        """The blob of a model; raises RegionRefused unless the provider takes it whole."""
