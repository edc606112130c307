"""One fx graph -> instructions, for the method's own graph and for every graph inside it.

Control flow becomes structured calls, whose bodies are blocks in the method's own table of values. Only values that
change are inputs of a block: carried values and parts of sequences. A body reads captured values in place, so
constants, states and inputs are never copied into a body. Values that no body reads, such as weights of a delegate in
the body, are not in the program.

Numbers that follow from symbols (sizes, comparisons of sizes) are expressions. Numbers that follow from a tensor, or
change between iterations (the counter of a loop), are computed by kernels on tensors without dimensions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from delegate.edge.control_flow import ControlFlow, control_flow
from delegate.edge.graphs import ASSERTIONS
from delegate.edge.node import ELEMENTS, SYMBOLIC, arguments, describe, op_name, read_elements, tensor, tensors
from delegate.edge.torch_private import OpOverload, auto_functionalized, schema_of
from delegate.emit.qdq_fusion import FusedNodes
from delegate.emit.tables import Tables
from delegate.errors import LoweringError
from delegate.memory.storage import UNPLANNED
from delegate.partitioner.extraction import LoweredDelegate, call_delegate
from delegate.program.dtypes import DType
from delegate.program.expr import Expr
from delegate.program.model import Arg, Block, DelegateCall, Instruction, Ref, Structure, StructuredCall, Value

_ELEMENT = "aten._local_scalar_dense.default"  # the number that a tensor of one element holds
_CLONE = "aten.clone.default"
_DTYPES: dict[type, DType] = {
    bool: DType.bool,
    torch.SymBool: DType.bool,
    int: DType.int64,
    torch.SymInt: DType.int64,
    float: DType.float64,
    torch.SymFloat: DType.float64,
}
_CARRIED = frozenset({int, torch.SymInt, torch.SymBool, torch.SymFloat})  # numbers that control flow may carry
# Arithmetic of numbers -> the operator on tensors, and its arguments after the operands.
_ARITHMETIC: dict[Any, tuple[str, tuple[Arg, ...]]] = {
    operator.add: ("aten.add.Tensor", (1,)),
    operator.sub: ("aten.sub.Tensor", (1,)),
    operator.mul: ("aten.mul.Tensor", ()),
    operator.truediv: ("aten.div.Tensor", ()),
    operator.floordiv: ("aten.div.Tensor_mode", ("floor",)),
    operator.mod: ("aten.remainder.Tensor", ()),
    operator.pow: ("aten.pow.Tensor_Tensor", ()),
    operator.neg: ("aten.neg.default", ()),
    operator.abs: ("aten.abs.default", ()),
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
    torch.sym_ite: ("aten.where.self", ()),
}


class GraphEmitter:
    """An emitter of a graph's nodes as instructions, in order.

    Args:
        tables: The method's tables of values and instructions.
        delegates: the lowered partitions, by name.
        placed: returns the index of a placeholder's value when it is first used.
        reads_data: True if sizes and numbers may depend on data, False inside control flow.
    """

    def __init__(
        self,
        tables: Tables,
        delegates: Mapping[str, LoweredDelegate],
        placed: Callable[[Node], int],
        *,
        reads_data: bool = False,
    ) -> None:
        self.tables, self._reads_data = tables, reads_data
        self.instructions: list[Instruction] = []
        self.guards: list[torch.SymBool] = []  # assertions on numbers that the method reads anyway
        self._asserted: list[tuple[Instruction, Node]] = []
        self._delegates, self._placed = delegates, placed
        self._indices: dict[Node, list[int]] = {}
        self._fused = FusedNodes()

    def emit(self, graph: Graph) -> Sequence[Any]:
        """Emit all nodes; return the graph's results as in its output node.

        Raises:
            LoweringError: programs cannot express an instruction, while `Tables.require_kernels` reports missing
                kernels.
        """
        self._fused = FusedNodes.of(graph)
        for node in graph.nodes:
            if node.op == "call_function" and node not in self._fused.idle:
                self._call(node)
        for call, condition in self._asserted:
            if self._reads_data and self._is_of_symbols(condition):
                self.instructions.remove(call)
                self.guards.append(condition.meta["val"])
        results = graph.output_node().args[0]
        return results if isinstance(results, Sequence) else (results,)

    def _call(self, node: Node) -> None:
        if node in self._fused.same:
            self.place(node, [self.value(self._fused.same[node])])
        elif node in self._fused.calls:
            op, args = self._fused.calls[node]
            self.kernel_call(op, tuple(self.argument(a, node) for a in args), self.define(node), node)
        elif emit := _EMITTERS.get(node.target) or _EMITTERS.get(op_name(node)):
            emit(self, node)
        elif (flow := control_flow(node)) is not None:
            self._control_flow_call(node, flow)
        elif tensors(node):
            self._operator_call(node)
        # Nodes of numbers need no instruction: the numbers are expressions over the symbols.

    def _result(self, node: Node) -> None:
        """Place one of several results of a node."""
        producer, position = node.args
        assert isinstance(producer, Node)
        assert isinstance(position, int)
        if producer in self._indices:  # a getitem of a list of numbers makes no value
            self.place(node, [self._indices[producer][position]])

    def _element(self, node: Node) -> None:
        """Register the number that a tensor of one element holds."""
        source = node.args[0]
        assert isinstance(source, Node)
        if self._reads_data:
            self.tables.symbols.register(node.meta.get("val"), self.value(source))

    def _delegate_call(self, node: Node) -> None:
        name, *operands = node.args
        delegate = self._delegates[str(name)]
        inputs = tuple(self.value(n) for n in operands if isinstance(n, Node))
        index = self.tables.shared.delegate(str(name), delegate.backend, delegate.result)
        self.instructions.append(DelegateCall(index, inputs, self.define(node)))

    def _operator_call(self, node: Node) -> None:
        if not isinstance(node.target, OpOverload):
            raise LoweringError(f"{op_name(node)} is not an operator that programs support", where=describe(node))
        op, named = op_name(node), arguments(node)
        if op == "aten.full.default" and self._is_computed(named["fill_value"]):
            self._emit_full(node)
            return
        if any(self._is_computed(argument) for argument in named.values()):
            op, args = self._with_tensors(node, named)
        else:
            args = [self.argument(argument, node) for argument in named.values()]
        allocates = self._reads_data and self.tables.learn_sizes(node, len(self.tables.values))
        call = self.tables.kernel_call(op, tuple(args), self.define(node), node, allocates=allocates)
        self.instructions.append(call)

    def _emit_writing_call(self, node: Node) -> None:
        """Emit a custom operator that writes to its arguments; its kernel returns the new values after the results."""
        if any(isinstance(value, list | tuple) for value in node.meta["val"]):
            raise LoweringError(
                f"{op_name(node)} writes to a list of tensors, which programs cannot express",
                where=describe(node),
                remedy="make it return the new values, or write to single tensors",
            )
        args = tuple(self.argument(argument, node) for argument in arguments(node).values())
        outputs = self.define(node)
        remaining = iter(outputs)
        self.place(node, [-1 if value is None else next(remaining) for value in node.meta["val"]])
        self.kernel_call(op_name(node), args, outputs, node)

    def _assertion(self, node: Node) -> None:
        """Emit an assertion of the model as one call of a kernel."""
        condition, message = node.args[0], arguments(node).get("assert_msg", "it is zero")
        if isinstance(condition, Node) and tensors(condition):
            self.kernel_call(op_name(node), (Ref(self.value(condition)), message), (), node)
            return
        numbers: list[Arg] = []
        words = " ".join(self._words(condition, numbers, node))
        self.kernel_call("assertion.numbers.default", (tuple(numbers), words, message), (), node)
        if isinstance(condition, Node):
            self._asserted.append((self.instructions[-1], condition))

    def _is_of_symbols(self, condition: Node) -> bool:
        """Return if a condition is one on known symbols, none of which torch has replaced by what is asserted of it."""
        value, read = condition.meta["val"], [node.meta["val"] for node in read_elements(condition)]
        if not isinstance(value, torch.SymBool) or not self.tables.symbols.knows(value):
            return False
        symbols = [n.node.expr.free_symbols if isinstance(n, SYMBOLIC) else set() for n in read]
        return all(each and each <= value.node.expr.free_symbols for each in symbols)

    def _words(self, number: Any, numbers: list[Arg], user: Node) -> Iterator[str]:
        """Yield a number in postfix notation, with n0 for `numbers[0]`, which it adds; see `kernels.assertions`."""
        if not isinstance(number, Node):
            yield str(+number)
        elif number.target in _ARITHMETIC and number not in self._indices:
            for operand in number.args:
                yield from self._words(operand, numbers, user)
            yield getattr(number.target, "__name__")  # noqa: B009
        else:
            if op_name(number) in ELEMENTS and number not in self._indices:
                self.place(number, [self._item(number)])
            yield f"n{len(numbers)}"
            is_value = number in self._indices or self._is_computed(number)
            numbers.append(Ref(self._number_value(number, user)) if is_value else self.argument(number, user))

    # -- values -------------------------------------------------------------------------------------------------------

    def value(self, node: Node) -> int:
        """Return the index of a node's only value."""
        if node not in self._indices:
            if node.op != "placeholder":
                raise LoweringError("a value is used before it is computed", where=describe(node))
            self._indices[node] = [self._placed(node)]
        return self._indices[node][0]

    def place(self, node: Node, indices: Sequence[int]) -> None:
        """Set the values of a node's results, one for each; -1 for a result None."""
        self._indices[node] = list(indices)
        if self._reads_data and len(indices) == 1:
            self.tables.symbols.register(node.meta.get("val"), indices[0])

    def clone(self, node: Node) -> int:
        """Emit a copy of a node's value; return its index."""
        index = self.value(node)
        copy = self.tables.add(self.tables.values[index]._replace(name=f"{node.name} (copy)", storage=UNPLANNED))
        self.kernel_call(_CLONE, (Ref(index), None), (copy,), node)
        return copy

    def kernel_call(self, op: str, args: tuple[Arg, ...], outputs: tuple[int, ...], node: Node) -> None:
        """Emit the call of a kernel for a node."""
        self.instructions.append(self.tables.kernel_call(op, args, outputs, node))

    def argument(self, arg: Any, node: Node) -> Arg:
        """Return an argument of a node, or a result of its graph, in the form of programs.

        Raises:
            LoweringError: programs have no such arguments.
        """
        if isinstance(arg, Node):
            value = arg.meta.get("val")
            return Ref(self.value(arg)) if isinstance(value, torch.Tensor) else self._number(value, node)
        if isinstance(arg, list | tuple):
            return tuple(self.argument(a, node) for a in arg)
        if isinstance(arg, torch.dtype):
            return self.tables.dtype(arg, node)
        if isinstance(arg, torch.device | torch.layout | torch.memory_format):
            return None
        return self._number(arg, node)

    def define(self, node: Node) -> tuple[int, ...]:
        """Add values for the results of a node."""
        indices = self.tables.define(node, UNPLANNED)
        self._indices[node], results = indices, node.meta.get("val")
        if isinstance(results, tuple | list) and len(indices) < len(results):  # a gradient that is not needed is None
            remaining = iter(indices)
            self._indices[node] = [next(remaining) if isinstance(value, torch.Tensor) else -1 for value in results]
        return tuple(indices)

    def _number(self, value: Any, node: Node) -> Arg:
        if isinstance(value, SYMBOLIC):
            return self.tables.symbols.number(value, describe(node))
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        raise LoweringError(
            f"an argument is a {type(value).__name__}, which programs do not support", where=describe(node)
        )

    # -- control flow -------------------------------------------------------------------------------------------------

    def _control_flow_call(self, node: Node, flow: ControlFlow) -> None:
        """Emit one control-flow node with its bodies.

        Args:
            node: the call.
            flow: its arguments.

        Raises:
            LoweringError: something in a body cannot be expressed in a program.
        """
        inputs = [] if flow.kind is not Structure.IF else [flow.predicate]
        inputs += [*flow.carried, *flow.sequences]
        operands = tuple(self._number_value(operand, node) for operand in inputs)
        blocks = tuple(self._block(flow, graph, node) for graph in map(_body, flow.graphs))
        if flow.kind is Structure.IF:
            self._learn_branch_sizes(node, blocks)
        outputs = self._control_flow_outputs(node)
        call = StructuredCall(
            flow.kind, operands, len(flow.carried), blocks, tuple(i for i in outputs if i >= 0), len(flow.sequences)
        )
        self.instructions.append(call)
        self.place(node, outputs)

    def _block(self, flow: ControlFlow, graph: Graph, node: Node) -> Block:
        placeholders = graph.find_nodes(op="placeholder")
        own = len(flow.carried) + len(flow.sequences)
        captured = dict(zip(placeholders[own:], flow.captured, strict=True))
        inner = GraphEmitter(self.tables, self._delegates, lambda p: self._number_value(captured[p], node))
        inputs: list[int] = []
        for placeholder in placeholders[:own]:
            inputs.append(self._new_value(placeholder, placeholder.name, placeholder.meta["val"]))
            inner.place(placeholder, [inputs[-1]])
        results = [r for r in inner.emit(graph) if r is not None]
        outputs = tuple(inner._number_value(result, node) for result in results)
        return Block(tuple(inputs), outputs, tuple(inner.instructions))

    def _learn_branch_sizes(self, node: Node, blocks: Sequence[Block]) -> None:
        """Map new symbols of a result's sizes to its sizes in the branches if these are equal in all branches."""
        results = [v for v in node.meta["val"] if v is not None]
        for result, *outputs in zip(results, *(block.outputs for block in blocks), strict=True):
            shapes = {self.tables.values[index].shape for index in outputs}
            if len(shapes) == 1 and isinstance(result, torch.Tensor):
                self.tables.symbols.learn_same(result, shapes.pop())

    def _control_flow_outputs(self, node: Node) -> list[int]:
        """Add values for the results of the call; -1 for None."""
        results = node.meta["val"]
        names = [node.name if len(results) == 1 else f"{node.name}.{i}" for i in range(len(results))]
        return [-1 if v is None else self._new_value(node, name, v) for name, v in zip(names, results, strict=True)]

    def _new_value(self, node: Node, name: str, example: Any) -> int:
        """Add a value like a fake tensor or a number."""
        if isinstance(example, torch.Tensor):
            return self.tables.like(example, name, UNPLANNED, node)
        if type(example) not in _CARRIED:
            what = f"control flow carries or returns a {type(example).__name__}"
            raise LoweringError(what, where=describe(node), remedy="use tensors and integers")
        return self.tables.add(Value(name, _DTYPES[type(example)], (), UNPLANNED))

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _is_computed(self, number: Any) -> bool:
        """Return if an argument is a number without an expression over the inputs' shapes."""
        value = number.meta.get("val") if isinstance(number, Node) else None
        return isinstance(value, SYMBOLIC) and not self.tables.symbols.knows(value)

    def _number_value(self, number: Any, user: Node) -> int:
        """Return the value that holds a number or a predicate; emit its computation if needed.

        Args:
            number: a plain number, or a node whose result is a number or a tensor of one element.
            user: the node that needs the number, for messages.

        Raises:
            LoweringError: programs cannot compute the number.
        """
        if not isinstance(number, Node):
            return self._fill(number, _DTYPES[type(number)], user)
        value = number.meta["val"]
        if isinstance(value, torch.Tensor) or number in self._indices:
            return self.value(number)
        if not isinstance(value, SYMBOLIC):
            return self._fill(value, _DTYPES[type(value)], user)
        if not self._is_computed(number):
            return self._fill(self.tables.symbols.number(value, describe(user)), _DTYPES[type(value)], user)
        if number.op == "placeholder":
            return self.value(number)
        index = self._item(number) if op_name(number) in ELEMENTS else self._arithmetic(number)
        self.place(number, [index])
        return index

    def _with_tensors(self, node: Node, named: dict[str, Any]) -> tuple[str, list[Arg]]:
        """Return the overload and arguments of a node with computed numbers: the overload that takes them as tensors.

        Without such an overload, the runtime reads the numbers from tensors between two stages of the method.

        Raises:
            LoweringError: the overload does not exist, and the node is inside control flow, which has no stages.
        """
        target = node.target
        assert isinstance(target, OpOverload)
        names = [name for name, argument in named.items() if self._is_computed(argument)]
        overload = next(
            (o for o in _overloads(target) if _tensors_of(o).issuperset(names) and _same_arguments(o, named)), None
        )
        if overload is None and self._reads_data:
            return op_name(node), [self.argument(argument, node) for argument in named.values()]
        if overload is None:
            raise LoweringError(
                f"{op_name(node)} has the number {names[0]!r}, which depends on data inside control flow",
                where=describe(node),
                remedy="compute it before the control flow, or use an operator that accepts tensors, e.g. index_select",
            )
        tensors = _tensors_of(overload)
        args = [
            Ref(self._number_value(argument, node))
            if name in tensors and argument is not None
            else self.argument(argument, node)
            for name, argument in named.items()
        ]
        return str(overload), args

    def _emit_full(self, node: Node) -> None:
        """Emit aten.full with a computed number: the number's tensor, in the dtype of the result, expanded."""
        named = arguments(node)
        dtype = self.tables.dtype(tensor(node).dtype, node)
        index = self._cast(self._number_value(named["fill_value"], node), dtype, node)
        expanded = self.tables.define(node, UNPLANNED)
        sizes = self.argument(named["size"], node)
        self.kernel_call("aten.expand.default", (Ref(index), sizes, False), tuple(expanded), node)
        self.place(node, expanded)

    def _fill(self, number: int | float | Expr, dtype: DType, user: Node) -> int:
        index = self.tables.add(Value("number", dtype, (), UNPLANNED))
        self.kernel_call("aten.full.default", ((), number, dtype, None, None, None), (index,), user)
        return index

    def _item(self, node: Node) -> int:
        """Emit the cast of a tensor's only element to the number's dtype."""
        source = node.args[0]
        assert isinstance(source, Node)
        index, dtype = self.value(source), _DTYPES[type(node.meta["val"])]
        if tensor(source).dim():
            flat = self.tables.add(Value(node.name, self.tables.values[index].dtype, (), UNPLANNED))
            self.kernel_call("aten.view.default", (Ref(index), ()), (flat,), node)
            index = flat
        return self._cast(index, dtype, node)

    def _cast(self, index: int, dtype: DType, node: Node) -> int:
        if self.tables.values[index].dtype is dtype:
            return index
        cast = self.tables.add(Value(node.name, dtype, (), UNPLANNED))
        args = (Ref(index), dtype, None, None, None, False, None)
        self.kernel_call("aten._to_copy.default", args, (cast,), node)
        return cast

    def _arithmetic(self, node: Node) -> int:
        if node.target not in _ARITHMETIC:
            raise LoweringError(
                f"the number {node.name} comes from {op_name(node)}, which programs cannot compute",
                where=describe(node),
                remedy="compute it with tensors in the model",
            )
        op, more = _ARITHMETIC[node.target]
        operands = tuple(Ref(self._number_value(a, node)) for a in node.args)
        index = self.tables.add(Value(node.name, _DTYPES[type(node.meta["val"])], (), UNPLANNED))
        self.kernel_call(op, (*operands, *more), (index,), node)
        return index


def _body(attribute: Node) -> Graph:
    module = getattr(attribute.graph.owning_module, str(attribute.target))
    assert isinstance(module, GraphModule)
    return module.graph


def _overloads(target: OpOverload[..., Any]) -> list[OpOverload[..., Any]]:
    """Return this overload, then the others of its operator."""
    packet = target.overloadpacket
    return [target, *(getattr(packet, name) for name in packet.overloads())]


def _tensors_of(overload: OpOverload[..., Any]) -> set[str]:
    """Return the names of the arguments that are one tensor."""
    return {a.name for a in schema_of(overload).arguments if str(a.type) in ("Tensor", "Optional[Tensor]")}


def _same_arguments(overload: OpOverload[..., Any], named: dict[str, Any]) -> bool:
    return [a.name for a in schema_of(overload).arguments] == list(named) and not schema_of(overload).is_mutable


# The emitters of nodes that are not operators with kernels, by target or by the operator's name.
_EMITTERS: Mapping[Any, Callable[[GraphEmitter, Node], None]] = {
    operator.getitem: GraphEmitter._result,
    call_delegate: GraphEmitter._delegate_call,
    auto_functionalized: GraphEmitter._emit_writing_call,
    **dict.fromkeys(ASSERTIONS, GraphEmitter._assertion),
    _ELEMENT: GraphEmitter._element,
}
