"""Changes to a model so that ONNX Runtime's own conversion from int8 to uint8 accepts it.

On CPUs of x86-64 ONNX Runtime 1.31 converts activations, and weights if products of uint8 and int8 saturate. The names
of converted weights collide if two nodes read one of them, or one zero point. A converted QuantizeLinear keeps an
attribute `output_dtype` that says int8. Either error makes the session fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import onnx
from onnx import NodeProto, TensorProto

from delegate.backends.onnx.runtime.blob import OnnxModel

_WEIGHTS: Mapping[str, tuple[int, int]] = {  # operator -> its weight and the zero point of the weight
    "DequantizeLinear": (0, 2),
    "DynamicQuantizeMatMul": (1, 3),
}


def convertible(model: OnnxModel) -> OnnxModel:
    """Return a model in which each node has its own int8 weights and zero points; equal weights share bytes."""
    proto = onnx.ModelProto.FromString(model.graph)
    graph, weights = proto.graph, {weight.name: weight for weight in model.weights}
    constants = {i.name: i for i in graph.initializer} | dict(_constants(graph))
    taken = set(constants)
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and len(node.input) == 3:
            kept = [a for a in node.attribute if a.name != "output_dtype"]  # the zero point has the type
            del node.attribute[:]
            node.attribute.extend(kept)
    _copy_shared_nodes(graph, constants)
    read: set[str] = set()
    for node in graph.node:
        places = [p for p in _WEIGHTS.get(node.op_type, ()) if p < len(node.input)]
        if not places or node.input[places[0]] not in constants:
            continue
        for place in places:
            name = node.input[place]
            held = constants.get(name)
            if held is None or held.data_type != TensorProto.INT8 or name not in read:
                read.add(name)
                continue
            copied = graph.initializer.add()
            copied.CopyFrom(held)
            copied.name = node.input[place] = _unused(name, taken)
            if name in weights:
                weights[copied.name] = replace(weights[name], name=copied.name)
    return replace(model, graph=proto.SerializeToString(), weights=tuple(weights.values()))


def _constants(graph: Any) -> Iterator[tuple[str, TensorProto]]:
    """Yield the tensors of Constant nodes by name."""
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def _copy_shared_nodes(graph: Any, constants: Mapping[str, TensorProto]) -> None:
    """Let each reader of a decoded weight have a DequantizeLinear of its own."""
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, place))
    results = {value.name for value in graph.output}
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type != "DequantizeLinear" or node.input[0] not in constants:
            continue
        name = node.output[0]
        first = 0 if name in results else 1  # reader that gets a copy
        for number, (reader, place) in enumerate(readers.get(name, [])[first:], 1):
            copied = NodeProto()
            copied.CopyFrom(node)
            copied.name = f"{node.name}.{number}"
            copied.output[0] = reader.input[place] = f"{name}.{number}"
            nodes.append(copied)
    if len(nodes) > len(graph.node):
        listed = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(listed)


def _unused(name: str, taken: set[str]) -> str:
    """Return a new name of a copy, and add it to the names that are taken."""
    number = next(n for n in range(1, len(taken) + 2) if f"{name}.{n}" not in taken)
    taken.add(f"{name}.{number}")
    return f"{name}.{number}"
