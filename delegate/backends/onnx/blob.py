"""The blob of a backend on ONNX Runtime: the serialized graph, then the weights that it names as external data.

What lies where stands in `compile_specs`, as plain JSON: "graph" (bytes), "weights" (name, element type, shape, offset,
bytes), "inputs" and "outputs" (name, element type); element types in ONNX's codes. "shapes" are further inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegate.program.memory_plan import align


@dataclass(frozen=True)
class Weight:
    """A constant of a model that lies outside of its graph.

    Args:
        name: of the initializer.
        dtype: ONNX's code of the element type.
        shape: sizes.
        offset, size: in bytes, from the start of the weights.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model: its name, and ONNX's code of its element type."""

    name: str
    dtype: int


# An input of int64 that holds a shape: each size is a number, or the number of an input and the dimension of it.
Shape = tuple[int | tuple[int, int], ...]


@dataclass(frozen=True)
class OnnxModel:
    """A model and its weights.

    Args:
        graph: the serialized ModelProto, whose large initializers are external.
        weights: where each of these lies in `data`.
        data: the bytes of the weights.
        inputs, outputs: in the order of the delegate's.
        shapes: what the inputs hold that come last, and that the delegate is not given.
    """

    graph: bytes
    weights: tuple[Weight, ...]
    data: memoryview | bytes
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    shapes: tuple[Shape, ...] = ()


def pack(model: OnnxModel) -> tuple[bytes, dict[str, Any]]:
    """The blob of a model, and what compile_specs says of it."""
    padding = bytes(align(len(model.graph)) - len(model.graph))
    specs = {
        "graph": len(model.graph),
        "weights": [[w.name, w.dtype, list(w.shape), w.offset, w.size] for w in model.weights],
        "inputs": _rows(model.inputs),
        "outputs": _rows(model.outputs),
        "shapes": [list(shape) for shape in model.shapes],
    }
    return b"".join((model.graph, padding, model.data)), specs


def unpack(blob: memoryview, specs: Mapping[str, Any]) -> OnnxModel:
    """The model of a blob; its weights stay where they are.

    Raises:
        LookupError, TypeError, ValueError: specs and blob do not fit together.
    """
    size = specs["graph"]
    weights = [
        Weight(name, dtype, tuple(shape), offset, bytes_) for name, dtype, shape, offset, bytes_ in specs["weights"]
    ]
    data = blob[align(size) :]
    if not 0 <= size <= blob.nbytes or any(min(w.offset, w.size) < 0 for w in weights):
        raise ValueError("its compile specs have negative sizes")
    if any(w.offset + w.size > data.nbytes for w in weights):
        raise ValueError("the blob is shorter than its compile specs say")
    shapes = tuple(tuple(s if isinstance(s, int) else (s[0], s[1]) for s in row) for row in specs.get("shapes", ()))
    inputs, outputs = _tensors(specs["inputs"]), _tensors(specs["outputs"])
    return OnnxModel(bytes(blob[:size]), tuple(weights), data, inputs, outputs, shapes)


def _rows(tensors: Sequence[Tensor]) -> list[list[Any]]:
    return [[t.name, t.dtype] for t in tensors]


def _tensors(rows: Sequence[Sequence[Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, dtype) for name, dtype in rows)
