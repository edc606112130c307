"""torch's control flow -> structured calls, whose bodies are blocks in the method's own table of values.

Only what changes is handed to a block: carried values and parts of sequences. What a body captures it reads where it
lies outside, so that constants, states and inputs are never copied into a body, and what no body reads any more
(weights that a delegate inside has taken) is not in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from delegate.edge.control_flow import ControlFlow
from delegate.edge.node import describe
from delegate.emit.emission import Emission
from delegate.emit.numbers import number_value
from delegate.errors import LoweringError
from delegate.program.dtypes import DType
from delegate.program.model import Block, Structure, StructuredCall, Value
from delegate.runtime.storage import UNPLANNED

_NUMBERS = {int: DType.int64, torch.SymInt: DType.int64, torch.SymBool: DType.bool, torch.SymFloat: DType.float64}


def emit_control_flow(outer: Emission, node: Node, flow: ControlFlow) -> None:
    """Emit one control-flow node with its bodies.

    Args:
        outer: the emitter of the graph that the node is in.
        node: the call.
        flow: its arguments.

    Raises:
        LoweringError: something in a body cannot be expressed in a program.
    """
    given = [] if flow.kind is not Structure.IF else [flow.predicate]
    given += [*flow.carried, *flow.sequences]
    operands = tuple(number_value(outer, operand, node) for operand in given)
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
    """What a body sees of the graph around it: looked up when the body first uses it."""

    def __init__(self, outer: Emission, operand: Any, node: Node) -> None:
        self._outer, self._operand, self._node = outer, operand, node

    def __call__(self) -> int:
        return number_value(self._outer, self._operand, self._node)


def _body(attribute: Node) -> Graph:
    module = getattr(attribute.graph.owning_module, str(attribute.target))
    assert isinstance(module, GraphModule)
    return module.graph


def _block(
    outer: Emission, flow: ControlFlow, graph: Graph, captured: Sequence[Callable[[], int]], node: Node
) -> Block:
    placeholders = graph.find_nodes(op="placeholder")
    own = len(flow.carried) + len(flow.sequences)
    lookups = dict(zip(placeholders[own:], captured, strict=True))
    inner = outer.nested(lambda placeholder: lookups[placeholder]())
    inputs: list[int] = []
    for placeholder in placeholders[:own]:
        inputs.append(_made(outer, placeholder, placeholder.name, placeholder.meta["val"]))
        inner.place(placeholder, [inputs[-1]])
    results = [r for r in inner.emit(graph) if r is not None]
    outputs = tuple(number_value(inner, result, node) for result in results)
    return Block(tuple(inputs), outputs, tuple(inner.instructions))


def _learn_sizes(outer: Emission, node: Node, blocks: Sequence[Block]) -> None:
    """Sizes of results that torch names anew although both branches give the same, which depend on data before them."""
    results = [v for v in node.meta["val"] if v is not None]
    for result, *made in zip(results, *(block.outputs for block in blocks), strict=True):
        shapes = {outer.tables.values[index].shape for index in made}
        if len(shapes) == 1 and isinstance(result, torch.Tensor):
            outer.tables.symbols.learn_same(result, shapes.pop())


def _outputs(outer: Emission, node: Node) -> list[int]:
    """New values for the results of the call; -1 where a body gives None."""
    given = node.meta["val"]
    names = [node.name if len(given) == 1 else f"{node.name}.{i}" for i in range(len(given))]
    return [-1 if v is None else _made(outer, node, name, v) for name, v in zip(names, given, strict=True)]


def _made(outer: Emission, node: Node, name: str, given: Any) -> int:
    """A new value for a tensor or a number."""
    if isinstance(given, torch.Tensor):
        return outer.tables.like(given, name, UNPLANNED, node)
    dtype = _NUMBERS.get(type(given))
    if dtype is None:
        what = f"control flow carries or gives a {type(given).__name__}"
        raise LoweringError(what, where=describe(node), remedy="use tensors and integers")
    return outer.tables.add(Value(name, dtype, (), UNPLANNED))
