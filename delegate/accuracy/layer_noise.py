"""The noise of quantized layers: which of them make a quantized program less accurate than its float reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.figures import difference
from delegate.accuracy.reference import NodeRunner, flat_arguments
from delegate.accuracy.samples import Sample
from delegate.edge.node import base_name, decodes, edge_names, float_node, module_path, op_name, overload, tensors
from delegate.edge.torch_private import schema_of
from delegate.report.rows import Accuracy, LayerAccuracy

_MOST = 64  # layers whose effect on the results is measured: the least accurate by themselves
_NAMED = 5
_FOLDED = ("batch_norm", "_native_batch_norm_legit")  # operators that quantization folds into the layer before


@dataclass(frozen=True, slots=True)
class LayerNoise:
    """The noise of one quantized layer.

    Args:
        nodes: the layer's nodes in the float program, as `quantization.nodes` names them: the operator, and those that
            are quantized with it, such as an activation.
        place: module path and operator, for people.
        figures: The layer's error on the inputs that it has in the float program.
        excess: noise of the method's results if this layer alone is quantized, as a ratio to what the bounds allow.
    """

    nodes: tuple[str, ...]
    place: str
    figures: Accuracy
    excess: float

    def __str__(self) -> str:
        return f"{self.nodes[0]} ({self.place}, {self.figures.sqnr_db:.1f} dB)"


@dataclass(frozen=True, slots=True)
class FloatRun:
    """A run of the float program of a method.

    Args:
        program: the float program.
        sample: the call.
        values: Node name -> its value, for nodes that give a tensor.
        results: What the program returned for these inputs.
        method: the name of the method; empty if there is only one.
    """

    program: ExportedProgram
    sample: Sample
    values: Mapping[str, torch.Tensor]
    results: Sequence[torch.Tensor]
    method: str = ""

    @classmethod
    def of(cls, program: ExportedProgram, sample: Sample, method: str = "") -> FloatRun:
        """Run a float program in torch; raises AccuracyError if torch cannot."""
        values: dict[str, torch.Tensor] = {}

        def record(node: Node, result: Any) -> Any:
            if isinstance(result, torch.Tensor):
                values[node.name] = result.clone()  # operators in place may change it
            return result

        results = NodeRunner(program, record).results(flat_arguments(program, sample.args, sample.kwargs))
        return cls(program, sample, values, results, method)


def layer_noises(run: FloatRun, quantized: ExportedProgram, bounds: Bounds, operators: Set[str]) -> list[LayerNoise]:
    """Return the noise of every quantized layer of a method, those with most effect on the results first.

    Each layer runs once on the float program's own values, quantized as the layer quantizes them. Then the float
    program runs with that result in place of the layer's own, so rounding between two layers counts for both.

    Args:
        run: The recorded run of the float reference.
        quantized: the program made of it.
        bounds: that define the noise that is allowed.
        operators: the edge operators, without overloads, that `quantization.nodes` can keep in float. Operators that
            only move data are not among them: they have the integers of their inputs. Empty: all but views.

    Raises:
        AccuracyError: torch cannot run one of the programs.
    """
    floats, sample = run.program, run.sample
    nodes = {node.name: node for node in floats.graph.nodes}
    layers, decoded, own = _single_layers(run, quantized, operators)
    noises = []
    for name in sorted(own, key=lambda name: own[name][1].sqnr_db)[:_MOST]:
        end, accuracy = own[name]

        def replace_one(node: Node, result: Any, end: str = end, name: str = name) -> Any:
            return decoded[name].to(result.dtype) if node.name == end else result

        results = NodeRunner(floats, replace_one).results(flat_arguments(floats, sample.args, sample.kwargs))
        place = _place(nodes[layers[name].nodes[0]], run.method)
        noises.append(LayerNoise(layers[name].nodes, place, accuracy, bounds.excess(difference(results, run.results))))
    return sorted(noises, key=lambda noise: -noise.excess)


def layers_of(
    method: str, floats: ExportedProgram, quantized: ExportedProgram, sample: Sample
) -> Iterator[LayerAccuracy]:
    """Yield the error of each layer of a quantized method in a call, in the order of the program.

    Raises:
        AccuracyError: torch cannot run one of the programs.
    """
    run = FloatRun.of(floats, sample)
    nodes = {node.name: node for node in floats.graph.nodes}
    layers, _, own = _single_layers(run, quantized, frozenset())
    last = {layers[name].last: name for name in own}
    totals: dict[str, Accuracy] = {}

    def compare(node: Node, result: Any) -> Any:
        if node.name in last and (nearest := _nearest(result, layers[last[node.name]].ends, run.values)) is not None:
            totals[last[node.name]] = nearest[1]
        return result

    NodeRunner(quantized, compare).results(flat_arguments(quantized, sample.args, sample.kwargs))
    for name in (node.name for node in quantized.graph.nodes if node.name in own and node.name in totals):
        layer = layers[name].nodes[0]
        yield LayerAccuracy(method, layer, _place(nodes[layer], ""), own[name][1].sqnr_db, totals[name].sqnr_db)


def _single_layers(
    run: FloatRun, quantized: ExportedProgram, operators: Set[str]
) -> tuple[dict[str, _Layer], dict[str, torch.Tensor], dict[str, tuple[str, Accuracy]]]:
    """Run each quantized layer on the values of the float program.

    Returns:
        the layers by name, their results, and for each the node of the float program with that value and the error.
    """
    floats, sample, values = run.program, run.sample, run.values
    nodes = {node.name: node for node in floats.graph.nodes}
    layers = _by_origin(quantized, nodes, operators) or _by_module(quantized, floats, operators)
    single: dict[str, torch.Tensor] = {}  # results of layers on the float program's values

    def continue_in_float(node: Node, result: Any) -> Any:
        layer = layers.get(node.name)
        nearest = None if layer is None else _nearest(result, layer.starts, values)
        if nearest is None:
            return result
        single[node.name] = result
        return values[nearest[0]].clone()

    NodeRunner(quantized, continue_in_float).results(flat_arguments(quantized, sample.args, sample.kwargs))
    decoded: dict[str, torch.Tensor] = {}  # the same, after the operator that is fused and the layer's own rounding
    last = {layers[name].last: name for name in single}

    def continue_single(node: Node, result: Any) -> Any:
        result = single.get(node.name, result)
        if node.name in last:
            decoded[last[node.name]] = result.clone()
        return result

    NodeRunner(quantized, continue_single).results(flat_arguments(quantized, sample.args, sample.kwargs))
    nearest_of = {name: _nearest(result, layers[name].ends, values) for name, result in decoded.items()}
    return layers, decoded, {name: nearest for name, nearest in nearest_of.items() if nearest is not None}


def _place(layer: Node, method: str) -> str:
    """Return the module path and operator of a layer, for people; `method` is empty if there is only one."""
    return f"{module_path(layer) or 'no module'}, {op_name(layer)}{f' in method {method}' if method else ''}"


def noisiest(noises: Sequence[LayerNoise], allowed: float) -> list[LayerNoise]:
    """Return the layers without which the noise of the others adds up to at most `allowed`; at least one, if any.

    Args:
        noises: The layers with their noise, in descending order.
        allowed: the sum of the excesses that may stay.
    """
    left = sum(noise.excess for noise in noises)
    for count, noise in enumerate(noises):
        if count and left <= allowed:
            return list(noises[:count])
        left -= noise.excess
    return list(noises)


def blame(noises: Sequence[LayerNoise]) -> tuple[str, str]:
    """Return the layers with most noise in words, and the configuration that keeps them in float."""
    if not noises:
        return "", "quantize less of the model"
    worst = sorted(noises, key=lambda noise: -noise.excess)
    names = dict.fromkeys(node for noise in worst for node in noise.nodes)  # methods may have nodes of one name
    rules = "".join(f"\n    {name}: off" for name in names)
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    return f"; layers with the most noise: {', '.join(map(str, worst[:_NAMED]))}{more}", (
        f"keep these layers in float:\nquantization:\n  nodes:{rules}"
    )


def _is_layer(node: Node, operators: Set[str]) -> bool:
    """Return if a node computes on decoded integers and can compute on floats instead."""
    return _can_stay(node, operators) and any(map(decodes, node.all_input_nodes))


def _can_stay(node: Node, operators: Set[str]) -> bool:
    """Return if a node computes, and `quantization.nodes` can keep it in float."""
    if node.op != "call_function" or _is_rounding(node):
        return False
    return not operators.isdisjoint(edge_names(base_name(node))) if operators else not _is_view(node)


def _is_view(node: Node) -> bool:
    operator = overload(node)
    return operator is not None and any(result.alias_info is not None for result in schema_of(operator).returns)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of the quantized program.

    Args:
        nodes: its nodes in the float program.
        starts: nodes of the float program that may have the value of its operator.
        ends: nodes of the float program that may have its result.
        last: the node of the quantized program that has its result, rounded to integers and decoded if it is so there.
    """

    nodes: tuple[str, ...]
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    last: str


def _by_origin(quantized: ExportedProgram, floats: Mapping[str, Node], operators: Set[str]) -> dict[str, _Layer]:
    """Return the layers by the node that computes each, if the quantized program has the names of the float program."""
    nodes = [n for n in quantized.graph.nodes if _is_layer(n, operators) and float_node(n) in floats]
    return {node.name: _layer(node, floats, operators) for node in nodes}


def _by_module(quantized: ExportedProgram, floats: ExportedProgram, operators: Set[str]) -> dict[str, _Layer]:
    """Return the layers by the node that has the result of each, if the modules of both programs are the same.

    torchao's `quantize_` changes the operators of a module, and torch does not record the original operators.
    """
    groups, layers = _by_call(quantized), dict[str, _Layer]()
    for call, originals in _by_call(floats).items():
        group = groups.get(call, [])
        results = [n for n in group if any(_reads(user) and user not in group for user in n.users)]
        is_changed = [op_name(n) for n in group] != [op_name(n) for n in originals]
        if len(originals) == len(results) == 1 and is_changed and _can_stay(originals[0], operators):
            names, result = (originals[0].name,), results[0].name
            layers[result] = _Layer(names, names, names, result)
    return layers


def _reads(node: Node) -> bool:
    """Return if a node computes on its inputs or returns them, and is not a check."""
    return node.op == "output" or bool(tensors(node))


def _by_call(program: ExportedProgram) -> dict[str, list[Node]]:
    """Return the nodes that give tensors by the innermost call of a module that they are in."""
    calls: dict[str, list[Node]] = {}
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack and node.op == "call_function" and tensors(node):
            calls.setdefault(next(reversed(stack)), []).append(node)
    return calls


def _layer(node: Node, floats: Mapping[str, Node], operators: Set[str]) -> _Layer:
    """Return the layer of a node that computes on decoded integers."""
    own = floats[float_node(node)]
    folded = (user.name for user in own.users if any(name in str(user.target) for name in _FOLDED))
    starts = (own.name, *folded)
    users = list(node.users)
    fused = len(users) == 1 and _can_stay(users[0], operators)
    after = users[0] if fused and all(map(_is_rounding, users[0].users)) and float_node(users[0]) in floats else node
    ends = starts if after is node else (float_node(after),)
    rounded = [decoded for user in after.users if _is_rounding(user) for decoded in user.users]
    last = next(filter(decodes, rounded), after)
    return _Layer((own.name,) if after is node else (own.name, *ends), starts, ends, last.name)


def _is_rounding(node: Node) -> bool:
    """Return if a node makes integers of floats, or floats of integers."""
    return "quantize" in str(node.target)


def _nearest(
    result: torch.Tensor, names: Sequence[str], values: Mapping[str, torch.Tensor]
) -> tuple[str, Accuracy] | None:
    """Return the name and figures of the value of the same shape that is nearest to a result; None if there is none."""
    figures = {
        name: accuracy
        for name in names
        if name in values
        and values[name].shape == result.shape
        and (accuracy := difference([result], [values[name]])) is not None
    }
    return max(figures.items(), key=lambda item: item[1].sqnr_db, default=None)
