"""The artifact of backends on ONNX Runtime: a serialized graph as the blob, and the weights that it names as data.

The layout is in `compile_specs`, as plain JSON: "weights" (name, element type, shape, number of the data), "inputs" and
"outputs" (name, element type), with element types in ONNX's codes. "shapes" are further inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Weight:
    """A constant of a model that is stored outside of its graph.

    Args:
        name: name of the initializer.
        dtype: ONNX's code of the element type.
        shape: sizes.
        data: its bytes.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    data: memoryview | bytes


@dataclass(frozen=True)
class BlobTensor:
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
        weights: the external initializers; several may share bytes.
        inputs, outputs: inputs and outputs in the order of the delegate's.
        shapes: the contents of the last inputs, which are not inputs of the delegate.
    """

    graph: bytes
    weights: tuple[Weight, ...] = ()
    inputs: tuple[BlobTensor, ...] = ()
    outputs: tuple[BlobTensor, ...] = ()
    shapes: tuple[Shape, ...] = ()


def pack(model: OnnxModel) -> tuple[bytes, dict[str, Any], tuple[memoryview | bytes, ...]]:
    """Return the blob of a model, its entries of compile_specs, and its data."""
    data = {id(w.data): w.data for w in model.weights}
    places = {key: place for place, key in enumerate(data)}
    specs = {
        "weights": [[w.name, w.dtype, list(w.shape), places[id(w.data)]] for w in model.weights],
        "inputs": _rows(model.inputs),
        "outputs": _rows(model.outputs),
        "shapes": [list(shape) for shape in model.shapes],
    }
    return model.graph, specs, tuple(data.values())


def unpack(blob: memoryview, data: Sequence[memoryview], specs: Mapping[str, Any]) -> OnnxModel:
    """Return the model of a blob; its weights are not copied.

    Raises:
        LookupError, TypeError, ValueError: specs, blob and data do not fit together.
    """
    weights = tuple(_weight(data, *row) for row in specs["weights"])
    shapes = tuple(tuple(s if isinstance(s, int) else (s[0], s[1]) for s in row) for row in specs["shapes"])
    return OnnxModel(bytes(blob), weights, _tensors(specs["inputs"]), _tensors(specs["outputs"]), shapes)


def _weight(data: Sequence[memoryview], name: str, dtype: int, shape: Sequence[int], place: int) -> Weight:
    if not 0 <= place < len(data):
        raise ValueError(f"the weight {name!r} has the index {place} of {len(data)}")
    return Weight(name, dtype, tuple(shape), data[place])


def _rows(tensors: Sequence[BlobTensor]) -> list[list[Any]]:
    return [[t.name, t.dtype] for t in tensors]


def _tensors(rows: Sequence[Sequence[Any]]) -> tuple[BlobTensor, ...]:
    return tuple(BlobTensor(name, dtype) for name, dtype in rows)
