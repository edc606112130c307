"""Ranges of values that an operator such as `cat` joins: one range if they are similar, else the operator is in float.

In integers, the operands and the result have one scale. In the scale of boxes up to 640, scores up to 1 would become 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import Module
from torchao.quantization.pt2e.quantizer import SharedQuantizationSpec

from delegate.quantization.observers import FittingHistogram, FittingMinMax
from delegate.quantization.quantizer import ANNOTATION, JOINS

_MOST_APART = 16.0  # ratio of the largest range to the smallest one, which then keeps 4 of 8 bits


def join_ranges(module: GraphModule) -> dict[Node, Any]:
    """Give one range to the operands and the result of operators that join similar ranges; leave the others in float.

    Args:
        module: a calibrated model of `prepare`, which is changed.

    Returns:
        The operators that are left in float, each with the observer of its result, which users in integers still have.
    """
    groups: dict[Any, list[Any]] = {}
    sizes: dict[Any, tuple[float, float]] = {}  # of the smallest and the largest range that a value joins
    apart: dict[Node, Any] = {}
    for node in (n for n in module.graph.nodes if n.meta.get(JOINS)):
        observers = [observer_of(module, place) for place in (*node.all_input_nodes, *node.users)]
        group = list(dict.fromkeys(member for observer in observers for member in groups.get(observer, [observer])))
        spread = [s for o in group for s in sizes.get(o, (_size(o),)) if s]
        if all(map(_is_measured, group)) and max(spread, default=0.0) <= _MOST_APART * min(spread, default=0.0):
            groups |= dict.fromkeys(group, group)
        else:
            apart[node] = observers[-1]
            sizes[observers[-1]] = (min(spread), max(spread))
    joint = {id(group): _joint(group) for group in groups.values()}
    for call in list(module.graph.find_nodes(op="call_module")):
        observer = module.get_submodule(call.target)
        if observer in groups:
            module.set_submodule(call.target, joint[id(groups[observer])])
    for observer in apart.values():
        _leave_in_float(module, observer)
    module.recompile()
    return apart


def observer_of(module: GraphModule, call: Node) -> Any:
    """Return the observer that a node calls."""
    return module.get_submodule(str(call.target))


def calls_of(module: GraphModule, observer: Module) -> list[Node]:
    """Return the nodes that call an observer: one for its value, and one for each move of the value."""
    return [call for call in module.graph.find_nodes(op="call_module") if observer_of(module, call) is observer]


def _is_measured(observer: Module) -> bool:
    return isinstance(observer, FittingHistogram | FittingMinMax)


def _size(observer: Any) -> float:
    """Return the largest absolute value of a range; 0 if all its values are 0."""
    if _is_measured(observer) and not observer.counts.any():
        return 0.0
    return max(map(abs, _ends(observer)))


def _ends(observer: Any) -> tuple[float, float]:
    scale, zero_point = (float(p) for p in observer.calculate_qparams())
    return (observer.quant_min - zero_point) * scale, (observer.quant_max - zero_point) * scale


def _joint(group: list[Any]) -> FittingMinMax:
    """Return an observer of the range that has all ranges of a group."""
    first, ends = group[0], [_ends(observer) for observer in group]
    joint = FittingMinMax(
        dtype=first.dtype, qscheme=first.qscheme, quant_min=first.quant_min, quant_max=first.quant_max
    )
    joint.min_val, joint.max_val = (
        torch.tensor(min(low for low, _ in ends)),
        torch.tensor(max(high for _, high in ends)),
    )
    joint.counts = torch.stack([observer.counts for observer in group]).sum(0)
    return joint


def _leave_in_float(module: GraphModule, observer: Module) -> None:
    """Keep a value, and what only moves it, in float for all users that do not compute in integers."""
    for call in calls_of(module, observer):
        for user in list(call.users):
            if not _computes_in_integers(user):
                user.replace_input_with(call, call.all_input_nodes[0])
        if not call.users:
            module.graph.erase_node(call)


def _computes_in_integers(node: Node) -> bool:
    annotation = node.meta.get(ANNOTATION)
    is_move = node.meta.get(JOINS) or isinstance(getattr(annotation, "output_qspec", None), SharedQuantizationSpec)
    return annotation is not None and not is_move
