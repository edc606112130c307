"""as_strided, which reads memory, in terms of row-major order, so that it does not depend on the layout of a tensor.

torch keeps results of many operators in the layout of their inputs, for example transposed or channels_last. In edge
programs strides have no meaning, and as_strided counts the elements of its argument in row-major order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.edge.build import copied_module, make_like, with_inputs
from delegate.edge.functional import memory_chain
from delegate.edge.graphs import graph_modules
from delegate.edge.node import SYMBOLIC, arguments, describe, op_name, tensor
from delegate.errors import ExportError

aten = torch.ops.aten
_READS = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default"})
_SCATTER = "aten.as_strided_scatter.default"
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # numbers for symbols, to compare sizes with strides


def with_row_major_strides(ep: ExportedProgram) -> ExportedProgram:
    """Return a program whose as_strided operators read row-major tensors; `ep` is not changed.

    Raises:
        ExportError: an as_strided reads memory that has gaps or overlaps.
    """
    if not any(op_name(n) in (*_READS, _SCATTER) for part in graph_modules(ep.graph_module) for n in part.graph.nodes):
        return ep
    module = copied_module(ep)
    for part in graph_modules(module):
        for node in list(part.graph.nodes):
            if op_name(node) in _READS:
                _read(node)
            elif op_name(node) == _SCATTER:
                _scatter(node)
    return with_inputs(ep, module, ep.graph_signature.input_specs, {})


def _read(node: Node) -> None:
    """Let a node read the tensor that owns the memory, in the order of the memory."""
    named = arguments(node)
    dtype = tensor(named["self"]).dtype
    *_, owner = takewhile(lambda source: tensor(source).dtype is dtype, memory_chain(named["self"]))
    memory, _ = _in_memory_order(owner, node)
    node.args = (memory, named["size"], named["stride"], _offset(owner, named))
    node.kwargs = {}


def _scatter(node: Node) -> None:
    """Let a node write to a copy of its argument in the order of the memory."""
    named = arguments(node)
    memory, order = _in_memory_order(named["self"], node)
    args = (memory, named["src"], named["size"], named["stride"], _offset(named["self"], named))
    if memory is named["self"]:
        node.args, node.kwargs = args, {}
        return
    with node.graph.inserting_before(node):
        written = make_like(node, aten.as_strided_scatter.default, args, {})
    back = sorted(range(len(order)), key=order.__getitem__)
    node.target, node.args, node.kwargs = aten.permute.default, (written, back), {}


def _offset(owner: Node, named: dict[str, Any]) -> Any:
    """Return the offset from the owner's first element. None among the arguments stands for that of the view."""
    offset, begin = named["storage_offset"], tensor(owner).storage_offset()
    if offset is None:
        offset = tensor(named["self"]).storage_offset()
    return offset - begin if begin else offset


def _in_memory_order(owner: Node, node: Node) -> tuple[Node, list[int]]:
    """Return a tensor with its dimensions in the order of its memory, and that order."""
    order = _memory_order(owner, node)
    if order == sorted(order):
        return owner, order
    with node.graph.inserting_before(node):
        return make_like(owner, aten.permute.default, (owner, order), {}), order


def _memory_order(owner: Node, node: Node) -> list[int]:
    """Return the dimensions of a tensor from the outermost to the innermost in memory; raise ExportError for gaps."""
    value = tensor(owner)
    symbols = sorted({s for n in (*value.shape, *value.stride()) for s in _symbols(n)}, key=str)
    order: list[int] = []
    for shift in (0, 1):  # other numbers, by which a size is told from another
        at = {s: _PRIMES[(i * 2 + shift) % len(_PRIMES)] for i, s in enumerate(symbols)}
        sizes, strides = ([_at(n, at) for n in numbers] for numbers in (value.shape, value.stride()))
        order = order or _from_outermost(sizes, strides)
        expected = [math.prod(sizes[d] for d in order[i + 1 :]) for i in range(len(order))]
        if math.prod(sizes) and any(sizes[d] > 1 and strides[d] != e for d, e in zip(order, expected, strict=True)):
            raise ExportError(
                f"as_strided reads {owner.name}, whose memory has gaps or overlaps",
                where=describe(node),
                remedy="call .contiguous() before it in the model, or export with inputs that are contiguous",
            )
    return order


def _from_outermost(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the dimensions by their strides, largest first. A dimension of size 1 stays beside the one before it."""
    order = sorted((d for d, size in enumerate(sizes) if size > 1), key=lambda d: -strides[d])
    for dim, size in enumerate(sizes):
        if size <= 1:
            order.insert(order.index(dim - 1) + 1 if dim else 0, dim)
    return order


def _symbols(number: Any) -> set[Any]:
    return set(number.node.expr.free_symbols) if isinstance(number, SYMBOLIC) else set()


def _at(number: Any, symbols: dict[Any, int]) -> int:
    return int(number.node.expr.subs(symbols)) if isinstance(number, SYMBOLIC) else number
