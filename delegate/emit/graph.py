"""One fx graph -> instructions, for the method's own graph and for every graph inside it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._ops import OpOverload
from torch.fx import Graph, Node

from delegate.edge.control_flow import control_flow
from delegate.edge.node import arguments, describe, op_name, tensors
from delegate.emit.blocks import emit_control_flow
from delegate.emit.graph_builder import GraphBuilder
from delegate.emit.numbers import emit_full, is_computed, with_tensors
from delegate.emit.qdq_fusion import FusedNodes
from delegate.emit.tables import Tables
from delegate.errors import LoweringError
from delegate.partitioner.extraction import LoweredDelegate, call_delegate
from delegate.program.model import DelegateCall

_ELEMENT = "aten._local_scalar_dense.default"  # the number that a tensor of one element holds


class GraphEmitter(GraphBuilder):
    """An emitter of a graph's nodes as instructions, in order.

    Args:
        tables: of the method.
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
        super().__init__(tables, placed, reads_data=reads_data)
        self.delegates = delegates
        self._fused = FusedNodes()

    def emit(self, graph: Graph) -> Sequence[Any]:
        """Emit all nodes; return the graph's results as in its output node.

        Raises:
            LoweringError: programs cannot express an instruction. `Tables.require_kernels` reports missing kernels.
        """
        self._fused = FusedNodes.of(graph)
        for node in graph.nodes:
            if node.op == "call_function" and node not in self._fused.idle:
                self._call(node)
        results = graph.output_node().args[0]
        return results if isinstance(results, Sequence) else (results,)

    def nested(self, placed: Callable[[Node], int]) -> GraphEmitter:
        """Return an emitter for a graph inside this one, with a separate list of instructions."""
        return GraphEmitter(self.tables, self.delegates, placed)

    def _call(self, node: Node) -> None:
        if node in self._fused.same:
            self.place(node, [self.value(self._fused.same[node])])
        elif node in self._fused.calls:
            op, args = self._fused.calls[node]
            self.kernel_call(op, tuple(self.argument(a, node) for a in args), self.define(node), node)
        elif node.target is operator.getitem:
            producer, position = node.args
            assert isinstance(producer, Node)
            assert isinstance(position, int)
            if producer in self._indices:  # a getitem of a list of numbers makes no value
                self.place(node, [self._indices[producer][position]])
        elif node.target is call_delegate:
            self._delegate_call(node)
        elif (flow := control_flow(node)) is not None:
            emit_control_flow(self, node, flow)
        elif node.target is auto_functionalized:
            self._functionalized_call(node)
        elif tensors(node):
            self._operator_call(node)
        elif op_name(node) == _ELEMENT and self.reads_data:
            source = node.args[0]
            assert isinstance(source, Node)
            self.tables.symbols.register(node.meta.get("val"), self.value(source))
        # Nodes of numbers need no instruction: the numbers are expressions over the symbols.

    def _delegate_call(self, node: Node) -> None:
        name, *operands = node.args
        delegate = self.delegates[str(name)]
        inputs = tuple(self.value(n) for n in operands if isinstance(n, Node))
        index = self.tables.shared.delegate(str(name), delegate.backend, delegate.result)
        self.instructions.append(DelegateCall(index, inputs, self.define(node)))

    def _operator_call(self, node: Node) -> None:
        if not isinstance(node.target, OpOverload):
            raise LoweringError(f"{op_name(node)} is no operator that programs have", where=describe(node))
        op, named = op_name(node), arguments(node)
        if op == "aten.full.default" and is_computed(self, named["fill_value"]):
            emit_full(self, node)
            return
        if any(is_computed(self, argument) for argument in named.values()):
            op, args = with_tensors(self, node, named)
        else:
            args = [self.argument(argument, node) for argument in named.values()]
        allocates = self.reads_data and self.tables.learn_sizes(node, len(self.tables.values))
        call = self.tables.kernel_call(op, tuple(args), self.define(node), node, allocates=allocates)
        self.instructions.append(call)

    def _functionalized_call(self, node: Node) -> None:
        """Emit a custom operator that writes to its arguments; its kernel returns the new values after the results."""
        if any(isinstance(value, list | tuple) for value in node.meta["val"]):
            raise LoweringError(
                f"{op_name(node)} writes to a list of tensors, which programs cannot express",
                where=describe(node),
                remedy="let it give the new values, or write to single tensors",
            )
        args = tuple(self.argument(argument, node) for argument in arguments(node).values())
        outputs = self.define(node)
        remaining = iter(outputs)
        self.place(node, [-1 if value is None else next(remaining) for value in node.meta["val"]])
        self.kernel_call(op_name(node), args, outputs, node)
