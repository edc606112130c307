"""What an operator becomes in ONNX: rows of all operators that the backends on ONNX Runtime take, a file per family.

Most operators have one row. Where providers differ, an operator has several, the better first: a provider gets the
first whose ONNX operators it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

import torch

from delegate.backends.lowering import Check, LoweringTable, every
from delegate.backends.onnx.translations import (
    activations,
    convolutions,
    division,
    elementwise,
    indexing,
    logic,
    moving,
    normalization,
    padding,
    pooling,
    products,
    quantization,
    reductions,
    resizing,
    scattering,
    sorting,
    trigonometry,
)
from delegate.backends.onnx.translations.row import Row, Translation

_FAMILIES = (
    elementwise,
    trigonometry,
    division,
    logic,
    activations,
    reductions,
    convolutions,
    products,
    pooling,
    normalization,
    resizing,
    moving,
    padding,
    indexing,
    scattering,
    sorting,
    quantization,
)

_ROWS = sorted((row for family in _FAMILIES for row in family.ROWS), key=attrgetter("op"))
TRANSLATIONS: Mapping[str, tuple[Row, ...]] = {op: tuple(rows) for op, rows in groupby(_ROWS, key=attrgetter("op"))}


# The ONNX operators that a provider runs, and the dtypes of all their tensors. Of an operator whose modes differ, those
# beyond the plain one have entries of their own: "Pad(edge)", "ScatterElements(max)".
Operators = Mapping[str, frozenset[torch.dtype]]


def table_of(operators: Operators, limits: Mapping[str, Check] | None = None) -> LoweringTable[Translation]:
    """The rows of a provider: of each operator the first of which it runs all ONNX operators.

    Args:
        operators: that it runs.
        limits: operator -> what else the provider asks of a node.
    """
    found = (next((r for r in rows if r.lower.needs <= operators.keys()), None) for rows in TRANSLATIONS.values())
    return LoweringTable(_bound(row, operators, (limits or {}).get(row.op)) for row in found if row is not None)


def _bound(row: Row, operators: Operators, limit: Check | None) -> Row:
    """A row on the dtypes that the provider has for its ONNX operators."""
    dtypes = frozenset.intersection(*(operators[name] for name in row.lower.onnx)) | row.lower.beside
    return replace(row, dtypes=dtypes, check=row.check if limit is None else every(row.check, limit))
