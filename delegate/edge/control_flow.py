"""Control flow (torch.cond, while_loop, scan, map): a common form of its arguments, and its graphs as programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from delegate.edge.node import META_CONSTANT
from delegate.edge.program import EdgeProgram
from delegate.edge.torch_private import HigherOrderOperator
from delegate.program.model import Structure


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """The arguments of a control-flow operator by their roles; each is a node or a number.

    The placeholders of its graphs are carried values, then parts of sequences, then captured values, in this order.

    Args:
        kind: the kind of control flow.
        graphs: get_attr nodes of the bodies, in the order of `Structure`.
        predicate: the condition that selects the branch of IF.
        carried: values that one iteration passes to the next.
        sequences: values that are split along dimension 0, one iteration for each part.
        captured: values that are the same in every iteration or branch.
    """

    kind: Structure
    graphs: tuple[Node, ...]
    predicate: Any = None
    carried: tuple[Any, ...] = ()
    sequences: tuple[Any, ...] = ()
    captured: tuple[Any, ...] = ()


def control_flow(node: Node) -> ControlFlow | None:
    """Return the arguments of a control-flow node; None for another node."""
    if not is_control_flow(node.target):
        return None
    return _READERS[_name(node.target)](*node.args, **node.kwargs)


def is_control_flow(target: Any) -> bool:
    """Return true if the target of a node is control flow that programs support."""
    return isinstance(target, HigherOrderOperator) and _name(target) in _READERS


def _name(target: Any) -> str:
    return str(target.name())


def _cond(predicate: Any, true_graph: Node, false_graph: Node, operands: Any = ()) -> ControlFlow:
    return ControlFlow(Structure.IF, (true_graph, false_graph), predicate, captured=tuple(operands))


def _while_loop(condition: Node, body: Node, carried: Any, captured: Any) -> ControlFlow:
    return ControlFlow(Structure.WHILE, (condition, body), carried=tuple(carried), captured=tuple(captured))


def _scan(body: Node, carried: Any, sequences: Any, captured: Any) -> ControlFlow:
    return ControlFlow(Structure.SCAN, (body,), None, tuple(carried), tuple(sequences), tuple(captured))


def _map(body: Node, sequences: Any, captured: Any) -> ControlFlow:
    return ControlFlow(Structure.MAP, (body,), sequences=tuple(sequences), captured=tuple(captured))


_READERS: dict[str, Callable[..., ControlFlow]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
}
CONTROL_FLOW = frozenset(_READERS)  # names of the operators


def subprograms(program: EdgeProgram) -> dict[str, EdgeProgram]:
    """Return the graphs of control flow as programs, by target of their get_attr node.

    A constant that every call passes to a graph is a constant of that graph, too. So a backend can compile the weights
    of a branch. The placeholders of the graph are marked as constants.
    """
    calls: dict[str, list[Sequence[Node | None]]] = {}
    for node in program.graph.find_nodes(op="get_attr"):
        calls.setdefault(str(node.target), []).extend(map(_operands, node.users))
    programs: dict[str, EdgeProgram] = {}
    for name, operands in calls.items():
        module = program.graph_module.get_submodule(name)
        if isinstance(module, GraphModule):
            programs[name] = _subprogram(program, name, module, operands)
    return programs


def _subprogram(
    program: EdgeProgram, name: str, module: GraphModule, calls: Sequence[Sequence[Node | None]]
) -> EdgeProgram:
    constants: dict[str, torch.Tensor] = {}
    constant_names: dict[str, str] = {}
    for position, placeholder in enumerate(module.graph.find_nodes(op="placeholder")):
        sources = {call[position] if position < len(call) else None for call in calls}
        source = sources.pop() if len(sources) == 1 else None
        is_constant = source is not None and program.is_constant(source)
        placeholder.meta[META_CONSTANT] = is_constant
        if source is not None and is_constant:
            constants[placeholder.name] = program.constants[source.name]
            constant_names[placeholder.name] = program.constant_names.get(source.name, source.name)
    return EdgeProgram(
        name=f"{program.name}.{name}",
        graph_module=module,
        inputs=(),
        constants=constants,
        constant_names=constant_names,
        states={},
        mutated=(),
        in_spec=None,
        out_spec=None,
        range_constraints=program.range_constraints,
    )


def _operands(call: Node) -> Sequence[Node | None]:
    """Return the operands of a control-flow operator by placeholder of its graphs; None for values that change."""
    flow = control_flow(call)
    if flow is None:
        return ()
    changing = [None] * (len(flow.carried) + len(flow.sequences))
    return [*changing, *(a if isinstance(a, Node) else None for a in flow.captured)]
