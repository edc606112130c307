"""Translations of operators to ONNX for the backends on ONNX Runtime, one file per family of operators.

Most operators have one row. Where providers differ, an operator has several, the better first: a provider gets the
first whose ONNX operators it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

import torch
from torch.fx import Node

from delegate.backend.lowering import Check, LoweringTable, every
from delegate.edge.node import tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations import (
    activations,
    elementwise,
    indexing,
    logic,
    moving,
    normalization,
    pooling,
    products,
    quantization,
    reductions,
    resizing,
    scattering,
)
from delegate_onnxruntime.onnx.aot.translations.row import Row, Translation

_FAMILIES = (
    elementwise,
    logic,
    activations,
    reductions,
    products,
    pooling,
    normalization,
    resizing,
    moving,
    indexing,
    scattering,
    quantization,
)

_ROWS = sorted((row for family in _FAMILIES for row in family.ROWS), key=attrgetter("op"))
TRANSLATIONS: Mapping[str, tuple[Row, ...]] = {op: tuple(rows) for op, rows in groupby(_ROWS, key=attrgetter("op"))}

# The ONNX operators that a provider runs, and the dtypes of all their tensors. Of an operator whose modes differ, those
# beyond the plain one have entries of their own: "Pad(edge)", "ScatterElements(max)".
Operators = Mapping[str, frozenset[torch.dtype]]


def table_of(operators: Operators, limits: Mapping[str, Check] | None = None) -> LoweringTable[Translation]:
    """Return the table of a provider: for each operator, the first row whose ONNX operators the provider runs.

    Args:
        operators: the ONNX operators that the provider runs.
        limits: operator -> an additional check of its nodes.
    """
    supported = (next((r for r in rows if r.lower.needs <= operators.keys()), None) for rows in TRANSLATIONS.values())
    return LoweringTable(_bound(row, operators, (limits or {}).get(row.op)) for row in supported if row is not None)


def _bound(row: Row, operators: Operators, limit: Check | None) -> Row:
    """Return the row for the dtypes that the provider supports in all its ONNX operators."""
    own = frozenset.intersection(*(operators[name] for name in row.lower.onnx))
    checks = [row.check, *([limit] if limit is not None else [])]
    if torch.int64 in row.lower.also - own:
        checks.append(_short_data)
    return replace(row, dtypes=own | row.lower.also, check=every(*checks) if len(checks) > 1 else row.check)


def _short_data(node: Node) -> Verdict:
    """Elements that are read or written at indices are not int64: the provider truncates them to 32 bits."""
    data = node.all_input_nodes[0]
    if tensor(data).dtype is torch.int64:
        return no(Reason.DTYPE, f"{data.name} is int64, and the provider truncates it to 32 bits")
    return YES
