"""as_strided, which reads memory, in terms of row-major order, so that it does not depend on the layout of a tensor.

torch keeps results of many operators in the layout of their inputs, for example transposed or channels_last. In edge
programs strides have no meaning, and as_strided counts the elements of its argument in row-major order. The strides of
fake tensors may differ from real ones (group_norm of channels_last, in torch 2.14), so a program with as_strided
runs once on zeros.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node

from delegate.edge.build import copied_module, make_like, with_inputs
from delegate.edge.functional import memory_chain
from delegate.edge.graphs import graph_modules
from delegate.edge.node import SYMBOLIC, arguments, describe, op_name, tensor
from delegate.edge.program import META_VALUE
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
    _set_real_layouts(module)
    for part in graph_modules(module):
        for node in list(part.graph.nodes):
            if op_name(node) in _READS:
                _read(node)
            elif op_name(node) == _SCATTER:
                _scatter(node)
    return with_inputs(ep, module, ep.graph_signature.input_specs, {})


def _set_real_layouts(module: GraphModule) -> None:
    """Run a program on zeros, and correct the strides of its fake tensors, in place, up to a call that zeros break."""
    run = _Layouts(module)
    with contextlib.suppress(Exception), torch.no_grad():
        run.run(*(_zeros(node) for node in module.graph.find_nodes(op="placeholder")), enable_io_processing=False)
    for node, (strides, offset) in run.layouts.items():
        fake = tensor(node)
        sizes, expected = ([_hint(n) for n in numbers] for numbers in (fake.shape, fake.stride()))
        if list(strides) == expected and offset == _hint(fake.storage_offset()):
            continue
        if not any(isinstance(size, SYMBOLIC) for size in fake.shape):
            memory = fake.new_empty(offset + _span(sizes, strides))
            node.meta[META_VALUE] = memory.as_strided(sizes, strides, offset)
        elif not offset:
            order = _from_outermost(sizes, strides)
            back = sorted(range(len(order)), key=order.__getitem__)
            node.meta[META_VALUE] = fake.new_empty([fake.shape[d] for d in order]).permute(back)


class _Layouts(Interpreter):
    """An interpreter that keeps the strides and the offset of each result that is one tensor."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.layouts: dict[Node, tuple[Sequence[int], int]] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and n.op == "call_function":
            self.layouts[n] = value.stride(), int(value.storage_offset())
        return value


def _zeros(node: Node) -> Any:
    value = node.meta.get(META_VALUE)
    return _as_zeros(value) if isinstance(value, torch.Tensor) else _hint(value)


def _as_zeros(fake: torch.Tensor) -> torch.Tensor:
    """Return zeros of the example's sizes and strides; their memory is mapped when it is used."""
    sizes, strides = ([_hint(n) for n in numbers] for numbers in (fake.shape, fake.stride()))
    return torch.zeros(_span(sizes, strides), dtype=fake.dtype).as_strided(sizes, strides)


def _span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last of a tensor."""
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if math.prod(sizes) else 0


def _hint(number: Any) -> Any:
    return number.node.hint if isinstance(number, SYMBOLIC) else number


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
    """Return the offset from the owner's first element. None among the arguments stands for the view's offset."""
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
