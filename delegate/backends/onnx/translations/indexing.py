"""Elements that are chosen by indices, read and written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delegate.backends.lowering import anything, one_index
from delegate.backends.onnx.translations.own import ops
from delegate.backends.onnx.translations.row import INDICES, Translation


def index(x: Any, indices: Sequence[Any]) -> Any:
    """Gather along the one dimension that is indexed."""
    (axis,) = (i for i, chosen in enumerate(indices) if chosen is not None)
    return ops().Gather(x, indices[axis], axis=axis)


def index_select(x: Any, dim: int, chosen: Any) -> Any:
    """Gather, without the exporter's reshaping of the indices."""
    return ops().Gather(x, chosen, axis=dim)


ROWS = (
    Translation("aten.embedding.default", ("Gather",), anything, beside=INDICES),
    Translation("aten.index.Tensor", ("Gather",), one_index, beside=INDICES, translate=index),
    Translation("aten.index_select.default", ("Gather",), anything, beside=INDICES, translate=index_select),
    Translation("aten.gather.default", ("GatherElements",), anything, beside=INDICES),
)
