"""torch's control flow as graphs hold it: one reading of torch.cond, while_loop, scan and map for all who ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._ops import HigherOrderOperator
from torch.fx import Node

from delegate.program.model import Structure


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """The arguments of a control-flow operator by what happens to them; each is a node or a number.

    The placeholders of its graphs are carried values, then parts of sequences, then captured values, in this order.

    Args:
        kind: which control flow.
        graphs: get_attr nodes of the bodies, in the order of `Structure`.
        predicate: what decides between the branches of IF.
        carried: what one turn gives to the next.
        sequences: what is taken apart along dimension 0, a turn for each part.
        captured: what is the same in every turn or branch.
    """

    kind: Structure
    graphs: tuple[Node, ...]
    predicate: Any = None
    carried: tuple[Any, ...] = ()
    sequences: tuple[Any, ...] = ()
    captured: tuple[Any, ...] = ()


def control_flow(node: Node) -> ControlFlow | None:
    """Return how to read a node that is control flow; None for any other."""
    if not is_control_flow(node.target):
        return None
    return _READERS[_name(node.target)](*node.args, **node.kwargs)


def is_control_flow(target: Any) -> bool:
    """Return true if what a node calls is control flow that programs have."""
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
