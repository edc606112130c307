"""torch's control flow -> structured calls, whose bodies are blocks in the method's own table of values.

Only values that change are inputs of a block: carried values and parts of sequences. A body reads captured values in
place, so constants, states and inputs are never copied into a body. Values that no body reads, such as weights of a
delegate in the body, are not in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from delegate.edge.control_flow import ControlFlow
from delegate.edge.node import describe
from delegate.emit.graph_builder import GraphBuilder
from delegate.emit.numbers import number_value
from delegate.errors import LoweringError
from delegate.memory.storage import UNPLANNED
from delegate.program.dtypes import DType
from delegate.program.model import Block, Structure, StructuredCall, Value

_NUMBERS = {int: DType.int64, torch.SymInt: DType.int64, torch.SymBool: DType.bool, torch.SymFloat: DType.float64}


def emit_control_flow(outer: GraphBuilder, node: Node, flow: ControlFlow) -> None:
    """Emit one control-flow node with its bodies.

    Args:
        outer: the emitter of the graph that the node is in.
        node: the call.
        flow: its arguments.

    Raises:
        LoweringError: something in a body cannot be expressed in a program.
    """
    inputs = [] if flow.kind is not Structure.IF else [flow.predicate]
    inputs += [*flow.carried, *flow.sequences]
    operands = tuple(number_value(outer, operand, node) for operand in inputs)
    captured = [_Captured(outer, operand, node) for operand in flow.captured]
    blocks = tuple(_block(outer, flow, graph, captured, node) for graph in map(_body, flow.graphs))
    if flow.kind is Structure.IF:
        _learn_sizes(outer, node, blocks)
    outputs = _outputs(outer, node)
    call = StructuredCall(
        flow.kind, operands, len(flow.carried), blocks, tuple(i for i in outputs if i >= 0), len(flow.sequences)
    )
    outer.instructions.append(call)
    outer.place(node, outputs)


class _Captured:
    """A captured value of the outer graph, looked up when a body first uses it."""

    def __init__(self, outer: GraphBuilder, operand: Any, node: Node) -> None:
        self._outer, self._operand, self._node = outer, operand, node

    def __call__(self) -> int:
        return number_value(self._outer, self._operand, self._node)


def _body(attribute: Node) -> Graph:
    module = getattr(attribute.graph.owning_module, str(attribute.target))
    assert isinstance(module, GraphModule)
    return module.graph


def _block(
    outer: GraphBuilder, flow: ControlFlow, graph: Graph, captured: Sequence[Callable[[], int]], node: Node
) -> Block:
    placeholders = graph.find_nodes(op="placeholder")
    own = len(flow.carried) + len(flow.sequences)
    lookups = dict(zip(placeholders[own:], captured, strict=True))
    inner = outer.nested(lambda placeholder: lookups[placeholder]())
    inputs: list[int] = []
    for placeholder in placeholders[:own]:
        inputs.append(_new_value(outer, placeholder, placeholder.name, placeholder.meta["val"]))
        inner.place(placeholder, [inputs[-1]])
    results = [r for r in inner.emit(graph) if r is not None]
    outputs = tuple(number_value(inner, result, node) for result in results)
    return Block(tuple(inputs), outputs, tuple(inner.instructions))


def _learn_sizes(outer: GraphBuilder, node: Node, blocks: Sequence[Block]) -> None:
    """Map new symbols of a result's sizes to its sizes in the branches if these are equal in all branches."""
    results = [v for v in node.meta["val"] if v is not None]
    for result, *outputs in zip(results, *(block.outputs for block in blocks), strict=True):
        shapes = {outer.tables.values[index].shape for index in outputs}
        if len(shapes) == 1 and isinstance(result, torch.Tensor):
            outer.tables.symbols.learn_same(result, shapes.pop())


def _outputs(outer: GraphBuilder, node: Node) -> list[int]:
    """Add values for the results of the call; -1 for None."""
    results = node.meta["val"]
    names = [node.name if len(results) == 1 else f"{node.name}.{i}" for i in range(len(results))]
    return [-1 if v is None else _new_value(outer, node, name, v) for name, v in zip(names, results, strict=True)]


def _new_value(outer: GraphBuilder, node: Node, name: str, example: Any) -> int:
    """Add a value like a fake tensor or a number."""
    if isinstance(example, torch.Tensor):
        return outer.tables.like(example, name, UNPLANNED, node)
    dtype = _NUMBERS.get(type(example))
    if dtype is None:
        what = f"control flow carries or gives a {type(example).__name__}"
        raise LoweringError(what, where=describe(node), remedy="use tensors and integers")
    return outer.tables.add(Value(name, dtype, (), UNPLANNED))
