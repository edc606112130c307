"""The noise of quantized layers: which of them make a quantized program less accurate than its float reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.figures import difference
from delegate.accuracy.reference import NodeRunner, flat_arguments
from delegate.accuracy.samples import Sample
from delegate.edge.node import decodes, float_node, module_path, op_name
from delegate.report import Accuracy

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
        figures: of the layer's result on the inputs that it has in the float program.
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
        values: of nodes that give a tensor, by name.
        results: of the program.
    """

    program: ExportedProgram
    sample: Sample
    values: Mapping[str, torch.Tensor]
    results: Sequence[torch.Tensor]

    @classmethod
    def of(cls, program: ExportedProgram, sample: Sample) -> FloatRun:
        """Run a float program in torch; raises AccuracyError if torch cannot."""
        values: dict[str, torch.Tensor] = {}

        def record(node: Node, result: Any) -> Any:
            if isinstance(result, torch.Tensor):
                values[node.name] = result.clone()  # operators in place may change it
            return result

        results = NodeRunner(program, record).results(flat_arguments(program, sample.args, sample.kwargs))
        return cls(program, sample, values, results)


def layer_noises(run: FloatRun, quantized: ExportedProgram, bounds: Bounds) -> list[LayerNoise]:
    """Return the noise of every quantized layer of a method, those with most effect on the results first.

    Each layer runs once on the float program's own values, quantized as the layer quantizes them. Then the float
    program runs with that result in place of the layer's own. Rounding between two layers counts for both.

    Args:
        run: of the float reference.
        quantized: the program made of it.
        bounds: that define the noise that is allowed.

    Raises:
        AccuracyError: torch cannot run one of the programs.
    """
    floats, sample, values = run.program, run.sample, run.values
    nodes = {node.name: node for node in floats.graph.nodes}
    layers = {n.name: _layer(n, nodes) for n in quantized.graph.nodes if _is_layer(n) and float_node(n) in nodes}
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
    own = {name: nearest for name, nearest in nearest_of.items() if nearest is not None}
    noises = []
    for name in sorted(own, key=lambda name: own[name][1].sqnr_db)[:_MOST]:
        end, accuracy = own[name]

        def replace_one(node: Node, result: Any, end: str = end, name: str = name) -> Any:
            return decoded[name].to(result.dtype) if node.name == end else result

        results = NodeRunner(floats, replace_one).results(flat_arguments(floats, sample.args, sample.kwargs))
        layer = nodes[layers[name].nodes[0]]
        place = f"{module_path(layer) or 'no module'}, {op_name(layer)}"
        noises.append(LayerNoise(layers[name].nodes, place, accuracy, bounds.excess(difference(results, run.results))))
    return sorted(noises, key=lambda noise: -noise.excess)


def noisiest(noises: Sequence[LayerNoise], allowed: float) -> list[LayerNoise]:
    """Return the layers without which the noise of the others adds up to at most `allowed`; at least one, if any.

    Args:
        noises: in descending order.
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
    rules = "".join(f"\n    {node}: off" for noise in worst for node in noise.nodes)
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    return f"; layers with the most noise: {', '.join(map(str, worst[:_NAMED]))}{more}", (
        f"keep these layers in float:\nquantization:\n  nodes:{rules}"
    )


def _is_layer(node: Node) -> bool:
    """Return if a node computes on decoded integers."""
    return node.op == "call_function" and not _is_rounding(node) and any(map(decodes, node.all_input_nodes))


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


def _layer(node: Node, floats: Mapping[str, Node]) -> _Layer:
    """Return the layer of a node that computes on decoded integers."""
    own = floats[float_node(node)]
    folded = (user.name for user in own.users if any(name in str(user.target) for name in _FOLDED))
    starts = (own.name, *folded)
    users = list(node.users)
    fused = len(users) == 1 and users[0].op == "call_function" and not _is_rounding(users[0])
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
