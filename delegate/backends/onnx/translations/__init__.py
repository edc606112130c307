"""What torch's ONNX exporter makes of an operator: one row per operator that the backends on ONNX Runtime take.

The rows stand in one file per family and are put together here.
"""

from __future__ import annotations

from collections.abc import Mapping

from delegate.backends.onnx.translations import (
    activations,
    convolutions,
    elementwise,
    indexing,
    moving,
    normalization,
    pooling,
    products,
    quantization,
    reductions,
    resizing,
)
from delegate.backends.onnx.translations.row import Translation

_FAMILIES = (
    elementwise,
    activations,
    reductions,
    convolutions,
    products,
    pooling,
    normalization,
    resizing,
    moving,
    indexing,
    quantization,
)

TRANSLATIONS: Mapping[str, Translation] = {row.op: row for family in _FAMILIES for row in family.ROWS}
