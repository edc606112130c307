"""What an operator becomes in ONNX: rows of all operators that the backends on ONNX Runtime take, a file per family.

Most operators have one row. Where providers differ, an operator has several, the better first: a provider gets the
first whose ONNX operators it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby
from operator import attrgetter

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
from delegate.backends.onnx.translations.row import Translation

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
TRANSLATIONS: Mapping[str, tuple[Translation, ...]] = {
    op: tuple(rows) for op, rows in groupby(_ROWS, key=attrgetter("op"))
}


def rows_of(operators: Collection[str]) -> Mapping[str, Translation]:
    """The row of each operator that a provider with these ONNX operators runs."""
    runs = frozenset(operators)
    found = ((op, next((r for r in rows if r.needs <= runs), None)) for op, rows in TRANSLATIONS.items())
    return {op: row for op, row in found if row is not None}
