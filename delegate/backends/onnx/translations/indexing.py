"""Elements that are chosen by indices, read and written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from delegate.backends.onnx.translations.own import ops
from delegate.backends.onnx.translations.row import INDICES, Translation, anything
from delegate.edge.node import arguments, tensors
from delegate.verdict import YES, Reason, Verdict, no


def _one_index(node: Node) -> Verdict:
    """One tensor of integer indices."""
    indices = [i for i in arguments(node)["indices"] if i is not None]
    if len(indices) == 1 and not any(t.dtype.itemsize == 1 for t in tensors(indices[0])):
        return YES
    return no(Reason.ATTRIBUTE, "only one tensor of integer indices is translated faithfully")


def index(x: Any, indices: Sequence[Any]) -> Any:
    """Gather along the one dimension that is indexed."""
    (axis,) = (i for i, chosen in enumerate(indices) if chosen is not None)
    return ops().Gather(x, indices[axis], axis=axis)


def index_select(x: Any, dim: int, chosen: Any) -> Any:
    """Gather, without the exporter's reshaping of the indices."""
    return ops().Gather(x, chosen, axis=dim)


ROWS = (
    Translation("aten.embedding.default", ("Gather",), anything, beside=INDICES),
    Translation("aten.index.Tensor", ("Gather",), _one_index, beside=INDICES, translate=index),
    Translation("aten.index_select.default", ("Gather",), anything, beside=INDICES, translate=index_select),
    Translation("aten.gather.default", ("GatherElements",), anything, beside=INDICES),
)
