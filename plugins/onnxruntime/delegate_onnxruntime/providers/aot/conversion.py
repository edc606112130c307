"""Changes to a model, in place of conversions from int8 to uint8 that fail in ONNX Runtime 1.31.

On CPUs of x86-64 it converts activations, and weights if products of uint8 and int8 saturate, and two errors make a
session fail. Nodes that it has moved keep the attribute `output_dtype` of int8. The names of converted weights collide
if two nodes read one weight, or one zero point. So activations are converted here, and each node gets its own weights.

QLinearSoftmax returns its smallest integer for values above its range, not its largest, so these values are bounded in
floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from delegate_onnxruntime.onnx.runtime.blob import OnnxModel

_WEIGHTS: Mapping[str, tuple[int, int]] = {  # operator -> its weight and the zero point of the weight
    "DequantizeLinear": (0, 2),
    "DynamicQuantizeMatMul": (1, 3),
    "MatMulInteger": (1, 3),
}


def convert_int8(model: OnnxModel) -> OnnxModel:
    """Return a model with activations in uint8, in which each node has its own int8 weights; equal ones share bytes."""
    proto = onnx.ModelProto.FromString(model.graph)
    graph, weights = proto.graph, {weight.name: weight for weight in model.weights}
    constants = {i.name: i for i in graph.initializer} | dict(_constants(graph))
    _use_unsigned_activations(graph, constants)
    _bound_softmax(graph, constants)
    taken = set(constants)
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
            copied.name = node.input[place] = _choose_name(name, taken)
            if name in weights:
                weights[copied.name] = replace(weights[name], name=copied.name)
    return replace(model, graph=proto.SerializeToString(), weights=tuple(weights.values()))


def _constants(graph: Any) -> Iterator[tuple[str, TensorProto]]:
    """Yield the tensors of Constant nodes by name."""
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def _use_unsigned_activations(graph: Any, constants: dict[str, TensorProto]) -> None:
    """Store activations in uint8 between the nodes that quantize and decode them, with zero points larger by 128."""
    readers: dict[str, list[NodeProto]] = {value.name: [] for value in graph.output}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    results = {value.name for value in graph.output}
    converted: set[str] = set()
    for node in graph.node:
        users = readers.get(node.output[0], [])
        pair = (node, *users)
        if node.op_type != "QuantizeLinear" or node.output[0] in results:
            continue
        zeros = {_int8(constants.get(n.input[2])) if len(n.input) == 3 else None for n in pair}
        if None in zeros or len(zeros) > 1 or any(n.op_type != "DequantizeLinear" for n in users):
            continue
        zero = _add_unsigned(zeros.pop(), graph, constants)
        for n in pair:
            n.input[2] = zero
        kept = [a for a in node.attribute if a.name != "output_dtype"]  # the zero point has the type
        del node.attribute[:]
        node.attribute.extend(kept)
        converted.add(node.output[0])
    described = [value for value in graph.value_info if value.name not in converted]
    del graph.value_info[:]
    graph.value_info.extend(described)


def _bound_softmax(graph: Any, constants: dict[str, TensorProto]) -> None:
    """Bound results of Softmax above the range in which they are quantized; the bound prevents QLinearSoftmax."""
    softmax = {node.output[0] for node in graph.node if node.op_type == "Softmax"}
    for number, node in reversed(list(enumerate(graph.node))):
        if node.op_type != "QuantizeLinear" or node.input[0] not in softmax:
            continue
        scale, zero = (constants[name] for name in node.input[1:])
        step, start = (onnx.numpy_helper.to_array(constant).item() for constant in (scale, zero))
        most = step * ((255 if zero.data_type == TensorProto.UINT8 else 127) - start)
        if most >= 1:
            continue
        name = _choose_name(f"{node.input[0]}_bound", set(constants))
        constants[name] = graph.initializer.add()
        constants[name].CopyFrom(onnx.numpy_helper.from_array(np.array(most, np.float32), name))
        graph.node.insert(number, onnx.helper.make_node("Min", [node.input[0], name], [f"{name}ed"]))
        node.input[0] = f"{name}ed"


def _int8(constant: TensorProto | None) -> int | None:
    """Return the value of an int8 constant with one element; None for another one."""
    if constant is None or constant.data_type != TensorProto.INT8:
        return None
    values = onnx.numpy_helper.to_array(constant)
    return int(values.reshape(-1)[0]) if values.size == 1 else None


def _add_unsigned(zero_point: int | None, graph: Any, constants: dict[str, TensorProto]) -> str:
    """Return the name of a uint8 constant that is larger by 128; add it if it is new."""
    assert zero_point is not None
    name = f"zero_point_{zero_point + 128}"
    while name in constants and constants[name].data_type != TensorProto.UINT8:
        name += "_"
    if name not in constants:
        constants[name] = graph.initializer.add()
        constants[name].CopyFrom(onnx.numpy_helper.from_array(np.array(zero_point + 128, np.uint8), name))
    return name


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


def _choose_name(name: str, taken: set[str]) -> str:
    """Return a new name of a copy, and add it to the names that are taken."""
    number = next(n for n in range(1, len(taken) + 2) if f"{name}.{n}" not in taken)
    taken.add(f"{name}.{number}")
    return f"{name}.{number}"
