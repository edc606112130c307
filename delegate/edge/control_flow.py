"""Control flow in graphs: a common form of the arguments of torch.cond, while_loop, scan and map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._ops import HigherOrderOperator
from torch.fx import Node

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
    return str(target._name)


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
