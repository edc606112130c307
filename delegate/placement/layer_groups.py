"""Groups of layers of one operator and shape: the unit of which the scheme of a quantization is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.backends.quantizable import QuantizationScheme, QuantizedOperator
from delegate.edge.node import base_name, edge_names, elements, tensor


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one operator whose weights have one shape; the last layer of a method is a group of its own.

    Args:
        name: for people, e.g. "12 linear 768x3072".
        nodes: of the float program.
        inputs: numbers of a channel that a group of weights has to divide.
        work: multiplications in one call.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: int
    work: int


def layer_groups(program: ExportedProgram, schemes: Sequence[QuantizationScheme]) -> list[LayerGroup]:
    """Return the groups of layers whose weights a backend can quantize, those with the most work first.

    Args:
        program: the float program of a method.
        schemes: of the backend.
    """
    layers = [(node, weight) for node in program.graph.nodes if (weight := _weight(program, node, schemes)) is not None]
    members: dict[tuple[str, torch.Size, bool], list[Node]] = {}
    for node, weight in layers:
        key = (base_name(node).rpartition(".")[2], tensor(weight).shape, node is layers[-1][0])
        members.setdefault(key, []).append(node)
    groups = []
    for (operator, shape, is_last), nodes in members.items():
        name = f"{'last' if is_last else len(nodes)} {operator} {'x'.join(map(str, shape))}"
        work = sum(elements(tensor(node)) for node in nodes) * (shape.numel() // shape[0])
        groups.append(LayerGroup(name, tuple(nodes), shape[-1], work))
    return sorted(groups, key=lambda group: -group.work)


def group_schemes(group: LayerGroup, schemes: Sequence[QuantizationScheme]) -> Iterator[QuantizationScheme]:
    """Yield the schemes that all layers of a group may have."""
    for scheme in schemes:
        rows = {node: _row(scheme, node) for node in group.nodes}
        if all(row is not None and (row.accepts is None or not row.accepts(node)) for node, row in rows.items()):
            yield scheme


def _weight(program: ExportedProgram, node: Node, schemes: Sequence[QuantizationScheme]) -> Node | None:
    """Return the constant weight of a layer that computes on float32; None for other nodes."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
        return None
    for row in filter(None, (_row(scheme, node) for scheme in schemes)):
        weight = None if row.weight is None or not row.inputs else node.args[row.weight]
        if isinstance(weight, Node) and weight.op == "placeholder":
            return None if weight.name in program.graph_signature.user_inputs else weight
    return None


def _row(scheme: QuantizationScheme, node: Node) -> QuantizedOperator | None:
    """Return the row of a scheme for a node."""
    names = edge_names(base_name(node)) if node.op == "call_function" else ()
    return next((row for row in scheme.operators if (row.op.rpartition(".")[0] or row.op) in names), None)
