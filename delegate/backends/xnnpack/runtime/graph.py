"""Reads from a large model what LiteRT's C interface and shared weights need: its inputs, outputs and packed layers.

XNNPACK identifies packed weights by the numbers of buffers and by a number for the kind of packing. So models may share
them if everything that packing reads is the same: the layers with their options, the numbers and contents of their
constants, and their scales. Sizes of activations are not part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from delegate.backends.xnnpack.runtime.interpreted import ModelTensor

Place = tuple[int, int]  # of a constant in the file: start, size

_CODES = schema.BuiltinOperator
_READ = _CODES.TRANSPOSE_CONV  # LiteRT reads its weights, though XNNPACK packs them
_LAYERS = frozenset({_CODES.CONV_2D, _CODES.DEPTHWISE_CONV_2D, _CODES.FULLY_CONNECTED, _READ})
_PACKING = _LAYERS | {_CODES.BATCH_MATMUL, _CODES.PRELU}  # operators with constants that may be packed
_ABSORBED = frozenset({_CODES.DEQUANTIZE, _CODES.PAD})  # before a layer, they become part of it
_DTYPES: Mapping[int, np.dtype[Any]] = {
    schema.TensorType.FLOAT32: np.dtype(np.float32),
    schema.TensorType.INT8: np.dtype(np.int8),
    schema.TensorType.UINT8: np.dtype(np.uint8),
}


class Graph:
    """The inputs, outputs and layers of a model that this backend has written.

    Args:
        model: the whole file, whose weights are not read, so they may be written later.

    Attributes:
        inputs, outputs: its tensors.
        weights: places of constants that only layers read, as weights or as scales of weights.
        packed: the places of `weights` that XNNPACK reads in packed form only.
    """

    def __init__(self, model: memoryview) -> None:
        root = schema.Model.GetRootAs(model, 0)
        graph = root.Subgraphs(0)
        self._codes = [root.OperatorCodes(i).BuiltinCode() for i in range(root.OperatorCodesLength())]
        self._tensors = [schema.TensorT.InitFromObj(graph.Tensors(i)) for i in range(graph.TensorsLength())]
        self._operators = [schema.OperatorT.InitFromObj(graph.Operators(i)) for i in range(graph.OperatorsLength())]
        self._makers = {int(t): operator for operator in self._operators for t in operator.outputs}
        self._places = [_place_of(root.Buffers(i)) for i in range(root.BuffersLength())]
        self.inputs, self.outputs = (
            tuple(_model_tensor(self._tensors[i]) for i in numbers)
            for numbers in (graph.InputsAsNumpy(), graph.OutputsAsNumpy())
        )
        self.weights, self.packed = self._find_weights()

    def _find_weights(self) -> tuple[frozenset[Place], frozenset[Place]]:
        in_layers, elsewhere, read = set[int](), {0}, set[int]()
        for operator in self._operators:
            code = self._codes[operator.opcodeIndex]
            for position, index in enumerate(operator.inputs):
                is_weight = code in _LAYERS and position == 1
                (in_layers if is_weight else elsewhere).update(self._buffers(index))
                if is_weight and code == _READ:
                    read.update(self._buffers(index))
        weights = in_layers - elsewhere
        return frozenset(self._places[i] for i in weights), frozenset(self._places[i] for i in weights - read)

    def _buffers(self, index: int) -> list[int]:
        """Return the buffers of a constant: its values, and the scales of its blocks."""
        if index < 0:
            return []
        tensor = self._tensors[index]
        details = tensor.quantization and tensor.quantization.details
        return [tensor.buffer, self._tensors[details.scales].buffer] if details else [tensor.buffer]

    def key(self, content: Callable[[Place], bytes], about: Mapping[str, str]) -> str:
        """Return the key of the model's packed weights.

        Args:
            content: returns a digest of the bytes at a place of the file.
            about: other inputs of packing: versions, the machine.
        """
        layers = [self._describe_layer(o, content) for o in self._operators if self._packs(o)]
        return hashlib.sha256(repr([sorted(about.items()), layers]).encode()).hexdigest()

    def _packs(self, operator: Any) -> bool:
        if self._codes[operator.opcodeIndex] not in _PACKING:
            return False
        made = [self._makers.get(int(index)) for index in operator.inputs]
        sources = [*operator.inputs, *(maker.inputs[0] for maker in made if maker is not None)]
        return any(index >= 0 and self._tensors[index].buffer for index in sources)

    def _describe_layer(self, operator: Any, content: Callable[[Place], bytes]) -> list[Any]:
        operands = [self._describe_operand(int(i), content) for i in (*operator.inputs, *operator.outputs)]
        return [self._codes[operator.opcodeIndex], _plain(operator.builtinOptions), operands]

    def _describe_operand(self, index: int, content: Callable[[Place], bytes]) -> list[Any]:
        """Describe a tensor and, if it is decoded or padded directly before the layer, what it is made from."""
        if index < 0:
            return []
        tensor, maker = self._tensors[index], self._makers.get(index)
        parts = [tensor.type, _plain(tensor.quantization)]
        if tensor.buffer:
            digests = [(number, content(self._places[number]).hex()) for number in self._buffers(index)]
            return [*parts, tensor.shape.tolist(), digests]
        last_size = (tensor.shape if tensor.shapeSignature is None else tensor.shapeSignature)[-1:].tolist()
        if maker is None or self._codes[maker.opcodeIndex] not in _ABSORBED:
            return [*parts, last_size]
        return [*parts, last_size, [self._describe_operand(int(i), content) for i in maker.inputs]]


def _place_of(buffer: Any) -> Place:
    size = buffer.DataLength()
    return (buffer._tab.Vector(buffer._tab.Offset(4)), size) if size else (0, 0)


def _model_tensor(tensor: Any) -> ModelTensor:
    shape = tuple(tensor.shape.tolist())
    signature = shape if tensor.shapeSignature is None else tuple(tensor.shapeSignature.tolist())
    return ModelTensor(shape, signature, _DTYPES[tensor.type])


def _plain(value: Any) -> Any:
    """Return a table of the file as dictionaries, lists and numbers."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {name: _plain(v) for name, v in vars(value).items()} if hasattr(value, "__dict__") else value
