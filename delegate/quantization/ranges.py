"""Measured ranges: those that an operator such as `cat` joins, and errors and warnings about values that they lose.

In integers, the operands and the result of `cat` have one scale. In the scale of boxes up to 640, scores up to 1 would
become 0, so the operator stays in float if their ranges are not similar.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import Module
from torchao.quantization.pt2e.quantizer import SharedQuantizationSpec

from delegate.common.user_warnings import warn_user
from delegate.errors import ConfigError, InputError
from delegate.quantization.observers import FittingHistogram, FittingMinMax, NotFinite
from delegate.quantization.quantizer import ANNOTATION, JOINS
from delegate.quantization.settings import stack

_MAX_VANISHING = 0.5  # share of the values that become 0; 2 % do in usual models
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


def not_finite_error(module: GraphModule, error: NotFinite, number: int) -> InputError:
    """Return the error that names the activation with NaN or infinity in a batch of calibration data."""
    node = next(node for node, observer in list_observers(module) if observer is error.observer)
    what = f"{place_of_observer(node)} has NaN or infinity, but its range is measured"
    rule = f"quantization.nodes: {{{node.args[0]}: off}}"
    remedy = f"remove such data, or keep the nodes that compute and read it in float, e.g. {rule}"
    return InputError(what, where=f"calibration batch {number}", remedy=remedy)


def list_observers(module: GraphModule) -> Iterator[tuple[Node, Module]]:
    """Yield the nodes that call observers or fake quantization, each with the observer."""
    for node in module.graph.find_nodes(op="call_module"):
        observer = module.get_submodule(node.target)
        if hasattr(observer, "calculate_qparams"):
            yield node, observer


def warn_of_outliers(module: GraphModule) -> None:
    """Warn of the values that ranges exclude."""
    observers = {node: observer for node, observer in list_observers(module) if isinstance(observer, FittingHistogram)}
    cases = [f"{place_of_observer(node)}: up to {o.largest:.3g}, others within {o.range[0]:.3g} and {o.range[1]:.3g}"
             for node, observer in observers.items() if (o := observer.outliers()) is not None]  # fmt: skip
    if cases:
        more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
        what = f"rare values are left out of ranges: {'; '.join(dict.fromkeys(cases[:3]))}{more}"
        remedy = "if they matter, set quantization.outliers: 0, or keep these layers in floats"
        warn_user(f"{what}: {remedy}")


def warn_of_vanishing(module: GraphModule, apart: Mapping[Node, Any]) -> None:
    """Warn of values that are too small for their integer representation.

    Args:
        module: the calibrated model.
        apart: operators that join ranges which are far apart, with the observers of their results.
    """
    tiny = {
        place_of_observer(node): layer_of_observer(node)
        for node, observer in list_observers(module)
        if _vanishes(module, node, observer)
    }
    for node, observer in apart.items():
        for operand, reader in _vanishing_operands(module, node, observer):
            tiny[f"{place_of_observer(operand)} in {node.name}"] = reader
    if tiny:
        places = list(tiny)
        more = f" and {len(places) - 5} more" if len(places) > 5 else ""
        what = f"values are too small for a scale, so that most become 0 or few numbers: {', '.join(places[:5])}{more}"
        remedy = f"keep these layers in floats: {rule_for_floats([tiny[place] for place in places[:5]])}"
        warn_user(f"{what}: {remedy}")


def _vanishing_operands(module: GraphModule, node: Node, observer: Any) -> Iterator[tuple[Node, Node]]:
    """Yield the observers of operands that mostly become 0 for a reader in integers, each with the reader."""
    readers = [user for call in calls_of(module, observer) for user in call.users]
    for operand in (source for source in node.all_input_nodes if readers and source.op == "call_module"):
        if observer_of(module, operand).vanishing(float(observer.calculate_qparams()[0])) > _MAX_VANISHING:
            yield operand, readers[0]


def _vanishes(module: GraphModule, node: Node, observer: Any) -> bool:
    """Return if most values become 0 or the range uses less than a quarter of the integers."""
    from torchao.quantization.pt2e import MovingAverageMinMaxObserver

    source = node.args[0]
    if isinstance(source, Node) and source.op == "get_attr":
        weight = operator.attrgetter(str(source.target))(module).detach()
        steps = _expand_scale(observer.calculate_qparams()[0], weight.shape, getattr(observer, "ch_axis", 0))
        nonzero = (weight.abs() / steps)[weight != 0]
        if not nonzero.numel():
            return False
        return bool((nonzero < 0.5).float().mean() > _MAX_VANISHING or nonzero.max() < observer.quant_max / 4)
    observer = getattr(observer, "activation_post_process", observer)  # of fake quantization
    if not isinstance(observer, FittingHistogram | FittingMinMax | MovingAverageMinMaxObserver):
        return False
    size = max(float(observer.max_val), 0.0) - min(float(observer.min_val), 0.0)
    levels = size / float(observer.calculate_qparams()[0])
    few = 0 < levels < (observer.quant_max - observer.quant_min) / 4
    counts = isinstance(observer, FittingHistogram | FittingMinMax)
    return few or (counts and observer.vanishing(float(observer.calculate_qparams()[0])) > _MAX_VANISHING)


def _expand_scale(scale: torch.Tensor, sizes: Sequence[int], axis: int) -> torch.Tensor:
    """Return the scale of each value of a weight, whose scales are per tensor, per channel of an axis, or per group."""
    if scale.dim() == len(sizes) > 1:
        return scale.repeat_interleave(sizes[-1] // scale.shape[-1], -1)
    return scale.reshape([-1 if place == axis else 1 for place in range(len(sizes))])


def place_of_observer(observer: Node) -> str:
    """Return the place of an observed value, for messages: a weight, an input, or a node and its module."""
    source = observer.args[0]
    assert isinstance(source, Node)
    return place_of(source)


def place_of(source: Node) -> str:
    if source.op == "get_attr":
        return f"weight {source.target}"
    if source.op == "placeholder":
        return f"input {source.name}"
    paths = stack(source)
    return f"{source.name} of {paths[-1][0]}" if paths else source.name


def layer_of_observer(observer: Node) -> Node:
    """Return the layer of an observed value; a weight or an input belongs to the one that reads it."""
    source = observer.args[0]
    assert isinstance(source, Node)
    return source if source.op == "call_function" else next(iter(observer.users), source)


def rule_for_floats(layers: Iterable[Node]) -> str:
    """Return the configuration that keeps layers in float: by module, else by name of node."""
    keys: dict[str, list[str]] = {}
    for layer in layers:
        paths = stack(layer)
        keys.setdefault("modules" if paths else "nodes", []).append(paths[-1][0] if paths else layer.name)
    return ", ".join(
        f"quantization.{key}: {{{', '.join(f'{name}: off' for name in dict.fromkeys(names))}}}"
        for key, names in keys.items()
    )


def require_ranges(module: GraphModule) -> None:
    """Raise ConfigError if an observer has measured nothing: torchao would choose a scale all the same."""
    for node, observer in list_observers(module):
        least = getattr(getattr(observer, "activation_post_process", observer), "min_val", None)
        if isinstance(least, torch.Tensor) and (least.numel() == 0 or not torch.isfinite(least).all()):
            what = "the range of a value was never measured"
            remedy = "run the prepared module on calibration data, or train it, before it is converted"
            raise ConfigError(what, where=str(node.args[0]), remedy=remedy)
