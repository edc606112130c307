"""as_strided, which reads memory, as an operator that counts the elements of a row-major tensor.

In edge programs strides have no meaning: as_strided counts the elements of its argument in row-major order. Torch keeps
the results of many operators in the layout of their inputs, for example transposed or channels_last, so as_strided of
such a result is refused.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from delegate.edge.build import copy_module, with_inputs
from delegate.edge.functional import memory_chain
from delegate.edge.graphs import graph_modules
from delegate.edge.node import arguments, describe, op_name, tensor
from delegate.errors import ExportError

_READS = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default"})
_SCATTER = "aten.as_strided_scatter.default"


def with_row_major_strides(ep: ExportedProgram) -> ExportedProgram:
    """Return a program whose as_strided operators read the tensors that own the memory; `ep` is not changed.

    Raises:
        ExportError: an as_strided reads memory that is not in row-major order.
    """
    if not any(op_name(n) in (*_READS, _SCATTER) for part in graph_modules(ep.graph_module) for n in part.graph.nodes):
        return ep
    module = copy_module(ep)
    for part in graph_modules(module):
        for node in list(part.graph.nodes):
            if op_name(node) in (*_READS, _SCATTER):
                _read_owner(node)
    return with_inputs(ep, module, ep.graph_signature.input_specs, {})


def _read_owner(node: Node) -> None:
    """Let a node read the tensor that owns the memory, or write to a copy of its argument."""
    named = arguments(node)
    owner = named["self"]
    if op_name(node) in _READS:
        dtype = tensor(owner).dtype
        *_, owner = takewhile(lambda source: tensor(source).dtype is dtype, memory_chain(owner))
    _require_row_major(owner, node)
    node.args = tuple({**named, "self": owner, "storage_offset": _offset(owner, named)}.values())
    node.kwargs = {}


def _offset(owner: Node, named: dict[str, Any]) -> Any:
    """Return the offset from the owner's first element. None among the arguments stands for the view's offset."""
    offset, begin = named["storage_offset"], tensor(owner).storage_offset()
    if offset is None:
        offset = tensor(named["self"]).storage_offset()
    return offset - begin if begin else offset


def _require_row_major(owner: Node, node: Node) -> None:
    """Raise ExportError unless the memory of a tensor is in row-major order, without gaps."""
    value, expected = tensor(owner), 1
    texts = [str(size) for size in value.shape]  # symbolic sizes are compared as text, which adds no guard
    for text, size, stride in reversed(list(zip(texts, value.shape, value.stride(), strict=True))):
        if text != "1" and str(stride) != str(expected) and "0" not in texts:
            raise ExportError(
                f"as_strided reads {owner.name}, whose memory is not in row-major order",
                where=describe(node),
                remedy="call .contiguous() before it in the model, or export with inputs that are contiguous",
            )
        expected = expected * size
