"""Numbers that are known only at run time, as tensors without dimensions.

Numbers that follow from symbols (sizes, comparisons of sizes) are expressions. Numbers that follow from a tensor, or
change between iterations (the counter of a loop), are computed by kernels on tensors.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from delegate.edge.node import SYMBOLIC, arguments, describe, op_name, tensor
from delegate.emit.graph_builder import GraphBuilder
from delegate.errors import LoweringError
from delegate.memory.storage import UNPLANNED
from delegate.program.dtypes import DType
from delegate.program.expr import Expr
from delegate.program.model import Arg, Ref, Value

_DTYPES: dict[type, DType] = {
    bool: DType.bool,
    torch.SymBool: DType.bool,
    int: DType.int64,
    torch.SymInt: DType.int64,
    float: DType.float64,
    torch.SymFloat: DType.float64,
}
# Arithmetic of numbers -> the operator on tensors, and its arguments after the operands.
_ARITHMETIC: dict[Any, tuple[str, tuple[Arg, ...]]] = {
    operator.add: ("aten.add.Tensor", (1,)),
    operator.sub: ("aten.sub.Tensor", (1,)),
    operator.mul: ("aten.mul.Tensor", ()),
    operator.truediv: ("aten.div.Tensor", ()),
    operator.floordiv: ("aten.div.Tensor_mode", ("floor",)),
    operator.mod: ("aten.remainder.Tensor", ()),
    operator.neg: ("aten.neg.default", ()),
    operator.eq: ("aten.eq.Tensor", ()),
    operator.ne: ("aten.ne.Tensor", ()),
    operator.lt: ("aten.lt.Tensor", ()),
    operator.le: ("aten.le.Tensor", ()),
    operator.gt: ("aten.gt.Tensor", ()),
    operator.ge: ("aten.ge.Tensor", ()),
    operator.and_: ("aten.logical_and.default", ()),
    operator.or_: ("aten.logical_or.default", ()),
    torch.sym_float: ("aten._to_copy.default", (DType.float64, None, None, None, False, None)),
    torch.sym_not: ("aten.logical_not.default", ()),
    torch.sym_max: ("aten.maximum.default", ()),
    torch.sym_min: ("aten.minimum.default", ()),
}
_ITEM = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})


def is_computed(emitter: GraphBuilder, number: Any) -> bool:
    """Return if an argument is a number without an expression over the inputs' shapes."""
    value = number.meta.get("val") if isinstance(number, Node) else None
    return isinstance(value, SYMBOLIC) and not emitter.tables.symbols.knows(value)


def number_value(emitter: GraphBuilder, number: Any, user: Node) -> int:
    """Return the value that holds a number or a predicate; emit its computation if needed.

    Args:
        emitter: of the graph of the number.
        number: a plain number, or a node whose result is a number or a tensor of one element.
        user: the node that needs the number, for messages.

    Raises:
        LoweringError: programs cannot compute the number.
    """
    if not isinstance(number, Node):
        return _filled(emitter, number, _DTYPES[type(number)], user)
    value = number.meta["val"]
    if isinstance(value, torch.Tensor) or emitter.has_value(number):
        return emitter.value(number)
    if not isinstance(value, SYMBOLIC):
        return _filled(emitter, value, _DTYPES[type(value)], user)
    if not is_computed(emitter, number):
        return _filled(emitter, emitter.tables.symbols.number(value, describe(user)), _DTYPES[type(value)], user)
    if number.op == "placeholder":
        return emitter.value(number)
    index = _item(emitter, number) if op_name(number) in _ITEM else _arithmetic(emitter, number)
    emitter.place(number, [index])
    return index


def with_tensors(emitter: GraphBuilder, node: Node, named: dict[str, Any]) -> tuple[str, list[Arg]]:
    """Return the overload and arguments of a node with computed numbers: the overload that takes them as tensors.

    Without such an overload, the runtime reads the numbers from tensors between two stages of the method.

    Raises:
        LoweringError: there is no such overload, and the node is inside control flow, which has no stages.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    names = [name for name, argument in named.items() if is_computed(emitter, argument)]
    overload = next(
        (o for o in _overloads(target) if _tensors_of(o).issuperset(names) and _same_arguments(o, named)), None
    )
    if overload is None and emitter.reads_data:
        return op_name(node), [emitter.argument(argument, node) for argument in named.values()]
    if overload is None:
        raise LoweringError(
            f"{op_name(node)} takes {names[0]!r} as a number that is known only when the program runs",
            where=describe(node),
            remedy="compute it as a tensor and use an operator that takes tensors, e.g. index_select or where",
        )
    tensors = _tensors_of(overload)
    args = [
        Ref(number_value(emitter, argument, node))
        if name in tensors and argument is not None
        else emitter.argument(argument, node)
        for name, argument in named.items()
    ]
    return str(overload), args


def emit_full(emitter: GraphBuilder, node: Node) -> None:
    """Emit aten.full with a computed number: the number's tensor, in the dtype of the result, expanded."""
    named = arguments(node)
    dtype = emitter.tables.dtype(tensor(node).dtype, node)
    index = _cast(emitter, number_value(emitter, named["fill_value"], node), dtype, node)
    expanded = emitter.tables.define(node, UNPLANNED)
    sizes = emitter.argument(named["size"], node)
    emitter.kernel_call("aten.expand.default", (Ref(index), sizes, False), tuple(expanded), node)
    emitter.place(node, expanded)


def _overloads(target: OpOverload[..., Any]) -> list[OpOverload[..., Any]]:
    """Return this overload, then the others of its operator."""
    packet = target.overloadpacket
    return [target, *(getattr(packet, name) for name in packet.overloads())]


def _tensors_of(overload: OpOverload[..., Any]) -> set[str]:
    """Return the names of the arguments that are one tensor."""
    return {a.name for a in overload._schema.arguments if str(a.type) in ("Tensor", "Optional[Tensor]")}


def _same_arguments(overload: OpOverload[..., Any], named: dict[str, Any]) -> bool:
    return [a.name for a in overload._schema.arguments] == list(named) and not overload._schema.is_mutable


def _filled(emitter: GraphBuilder, number: int | float | Expr, dtype: DType, user: Node) -> int:
    index = emitter.tables.add(Value("number", dtype, (), UNPLANNED))
    emitter.kernel_call("aten.full.default", ((), number, dtype, None, None, None), (index,), user)
    return index


def _item(emitter: GraphBuilder, node: Node) -> int:
    """Emit the cast of a tensor's only element to the number's dtype."""
    source = node.args[0]
    assert isinstance(source, Node)
    index, dtype = emitter.value(source), _DTYPES[type(node.meta["val"])]
    if tensor(source).dim():
        flat = emitter.tables.add(Value(node.name, emitter.tables.values[index].dtype, (), UNPLANNED))
        emitter.kernel_call("aten.view.default", (Ref(index), ()), (flat,), node)
        index = flat
    return _cast(emitter, index, dtype, node)


def _cast(emitter: GraphBuilder, index: int, dtype: DType, node: Node) -> int:
    if emitter.tables.values[index].dtype is dtype:
        return index
    cast = emitter.tables.add(Value(node.name, dtype, (), UNPLANNED))
    args = (Ref(index), dtype, None, None, None, False, None)
    emitter.kernel_call("aten._to_copy.default", args, (cast,), node)
    return cast


def _arithmetic(emitter: GraphBuilder, node: Node) -> int:
    if node.target not in _ARITHMETIC:
        raise LoweringError(
            f"the number {node.name} comes from {op_name(node)}, which programs cannot compute",
            where=describe(node),
            remedy="compute it with tensors in the model",
        )
    op, more = _ARITHMETIC[node.target]
    operands = tuple(Ref(number_value(emitter, a, node)) for a in node.args)
    index = emitter.tables.add(Value(node.name, _DTYPES[type(node.meta["val"])], (), UNPLANNED))
    emitter.kernel_call(op, (*operands, *more), (index,), node)
    return index
