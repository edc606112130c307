"""A writer of TFLite models: tensors, constants stored once by content, operators and their source nodes."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from delegate.backend.qdq import Coded
from delegate.program.dtypes import pack_pairs

Array = np.ndarray[Any, np.dtype[Any]]

_ALIGNMENT = 16  # of constant data, which XNNPACK reads in place
_LIMIT = 2**31 - 2**20  # a flatbuffer holds less than 2 GiB
_PACKING = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL"})
_TYPES = {
    np.dtype(np.float32): schema.TensorType.FLOAT32,
    np.dtype(np.float16): schema.TensorType.FLOAT16,
    np.dtype(np.int32): schema.TensorType.INT32,
    np.dtype(np.int8): schema.TensorType.INT8,
    np.dtype(np.uint8): schema.TensorType.UINT8,
}


@dataclass(frozen=True, slots=True)
class TensorQuantization:
    """The quantization of a tensor: its integers represent reals.

    Args:
        scales: one, or one for each place on `axis`; none if `blocks` is set.
        zero_points: one for each scale.
        axis: axis of several scales.
        blocks: the tensor of their scales, float16, and the number of values per scale; None without blocks.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int = 0
    blocks: tuple[int, int] | None = None

    def table(self) -> Any:
        """Return the flatbuffer's table."""
        parameters = schema.QuantizationParametersT()
        parameters.quantizedDimension = self.axis
        if self.blocks is None:
            parameters.scale, parameters.zeroPoint = (
                np.array(self.scales, np.float32),
                np.array(self.zero_points, np.int64),
            )
            return parameters
        parameters.detailsType = schema.QuantizationDetails.BlockwiseQuantization
        parameters.details = schema.BlockwiseQuantizationT()
        parameters.details.scales, parameters.details.blockSize = self.blocks
        parameters.details.zeroPoints = -1
        return parameters


class ModelTooLarge(ValueError):
    """The constants do not fit into one TFLite model."""


class _Buffer(schema.BufferT):  # type: ignore[misc]
    """A buffer whose data is aligned; the generated class aligns bytes to 1.

    Attributes:
        before_end: distance of the data's start from the end of the model that it was last packed into.
        coded: the integers that the data was decoded from.
    """

    before_end = 0
    coded: Coded | None = None

    def Pack(self, builder: flatbuffers.Builder) -> int:  # noqa: N802 - the generated classes call it
        data = None
        if self.data is not None:
            data = _write_aligned_vector(builder, self.data)
            self.before_end = data - 4  # after the vector's length
        schema.BufferStart(builder)
        if data is not None:
            schema.BufferAddData(builder, data)
        return int(schema.BufferEnd(builder))


def _write_aligned_vector(builder: flatbuffers.Builder, data: Array) -> int:
    payload = data.reshape(-1).view(np.uint8).data
    builder.StartVector(1, len(payload), _ALIGNMENT)
    builder.head -= len(payload)
    builder.Bytes[builder.head : builder.head + len(payload)] = payload
    builder.vectorNumElems = len(payload)
    return int(builder.EndVector())


class Model:
    """A TFLite model of one subgraph under construction.

    Tensors are named by their index, and sizes are physical: in the order that the data has in memory.

    Attributes:
        origins: the origin of each operator, in order.
    """

    def __init__(self) -> None:
        self.origins: list[str] = []
        self._graph = schema.SubGraphT()
        self._graph.tensors, self._graph.operators = [], []
        self._buffers: list[_Buffer] = [_Buffer()]  # buffer 0 is empty: tensors without data
        self._codes: dict[int, int] = {}
        self._makers: dict[int, Any] = {}  # tensor -> the operator that computes it
        self._constants: dict[tuple[bytes, tuple[int, ...], str, TensorQuantization | None, int], int] = {}
        self._contents: dict[bytes, int] = {}
        self._bytes = 0

    @property
    def operators(self) -> list[str]:
        """Return the names of the operators so far, e.g. "CONV_2D"."""
        names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
        codes = [names[code] for code in self._codes]
        return [codes[op.opcodeIndex] for op in self._graph.operators]

    def tensor(
        self,
        shape: Sequence[int],
        signature: Sequence[int] | None = None,
        quantization: TensorQuantization | None = None,
        dtype: Any = np.float32,
    ) -> int:
        """Add a tensor that is an input or a result at run time.

        Args:
            shape: sizes; for a dynamic dimension an example.
            signature: the same with -1 for dynamic dimensions; None if there is none.
            quantization: The quantization parameters, for integers.
            dtype: float32, int8 or uint8.
        """
        return self._add(shape, _TYPES[np.dtype(dtype)], 0, signature, quantization)

    def constant(
        self, array: Array, quantization: TensorQuantization | None = None, bits: int = 0, coded: Coded | None = None
    ) -> int:
        """Add a constant; the same content with the same parameters is stored once, as the same tensor.

        Args:
            array: float32, float16, int32 or int8.
            quantization: The quantization parameters, for integers that represent reals.
            bits: 4 for values of int8 that are stored in pairs per byte; else 0.
            coded: the integers that floats were decoded from, in runs.
        """
        array = np.ascontiguousarray(array).reshape(array.shape)
        data = pack_pairs(array) if bits == 4 else array
        digest = hashlib.sha256(data.reshape(-1).view(np.uint8).data).digest()
        key = (digest, array.shape, array.dtype.str, quantization, bits)
        if key not in self._constants:
            if digest not in self._contents:
                self._contents[digest] = len(self._buffers)
                buffer = _Buffer()
                buffer.data, buffer.coded = data, coded
                self._buffers.append(buffer)
                self._bytes += data.nbytes + 64
            kind = schema.TensorType.INT4 if bits == 4 else _TYPES[array.dtype]
            self._constants[key] = self._add(array.shape, kind, self._contents[digest], None, quantization)
        return self._constants[key]

    def operator(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], options: dict[str, Any], origin: str
    ) -> None:
        """Add an operator.

        Args:
            name: A name in `schema.BuiltinOperator`, e.g. "CONV_2D".
            inputs: tensors; -1 for an omitted one.
            outputs: tensors.
            options: fields of its options table, plus "table": the table's name, e.g. "Conv2DOptions"; empty for none.
            origin: name of its source node.
        """
        code = getattr(schema.BuiltinOperator, name)
        operator = schema.OperatorT()
        operator.opcodeIndex = self._codes.setdefault(code, len(self._codes))
        operator.inputs, operator.outputs = np.array(inputs, np.int32), np.array(outputs, np.int32)
        if options:
            table = options["table"]
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, table)
            operator.builtinOptions = getattr(schema, f"{table}T")(**{k: v for k, v in options.items() if k != "table"})
        self._graph.operators.append(operator)
        self._makers.update(dict.fromkeys(outputs, operator))
        self.origins.append(origin)

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """Return the model as bytes, which are reproducible, or raise ModelTooLarge for 2 GiB of constants."""
        if self._bytes > _LIMIT:
            raise ModelTooLarge(f"{self._bytes / 2**30:.1f} GiB of constants, but a TFLite model holds less than 2 GiB")
        self._number_buffers()
        graph = copy.copy(self._graph)
        graph.inputs, graph.outputs = np.array(inputs, np.int32), np.array(outputs, np.int32)
        return self._pack(graph)

    def constants(self, model: bytes) -> list[tuple[int, Array, Coded | None]]:
        """Return each constant: its start in the last result of `finish`, its array, and its integers or None."""
        return [(len(model) - b.before_end, b.data, b.coded) for b in self._buffers if b.data is not None]

    def single(self, position: int) -> bytes:
        """Return a model of one operator and the operators that decode its constants, with the same tensors."""
        operator = self._graph.operators[position]
        decoding = [op for op in self._graph.operators if self._decodes(op) and op.outputs[0] in operator.inputs]
        graph = copy.copy(self._graph)
        graph.operators, graph.outputs = [*decoding, operator], operator.outputs
        known = {op.outputs[0] for op in decoding}
        inputs = [t for t in operator.inputs if t >= 0 and not self._graph.tensors[t].buffer and t not in known]
        graph.inputs = np.array(inputs, np.int32)
        return self._pack(graph)

    def _decodes(self, operator: Any) -> bool:
        return len(operator.inputs) == 1 and bool(self._graph.tensors[operator.inputs[0]].buffer)

    def _number_buffers(self) -> None:
        """Number the constants of layers first, in the order of the layers.

        XNNPACK identifies packed weights by the numbers of buffers. So models of the same layers share packed weights,
        regardless of other content.
        """
        layers = (op for op, name in zip(self._graph.operators, self.operators, strict=True) if name in _PACKING)
        first = [b for op in layers for index in op.inputs[1:] for b in self._buffers_of(index)]
        order = list(dict.fromkeys((0, *first, *range(len(self._buffers)))))
        places = {old: new for new, old in enumerate(order)}
        self._buffers = [self._buffers[old] for old in order]
        self._contents = {digest: places[old] for digest, old in self._contents.items()}
        for tensor in self._graph.tensors:
            tensor.buffer = places[tensor.buffer]

    def _buffers_of(self, index: int) -> Iterator[int]:
        """Yield the buffer of a constant operand or of its encoded form, and that of the scales of its blocks."""
        maker = self._makers.get(index)
        tensor = self._graph.tensors[maker.inputs[0] if maker is not None and self._decodes(maker) else index]
        if index >= 0 and tensor.buffer:
            yield tensor.buffer
            details = tensor.quantization and tensor.quantization.details
            if details:
                yield self._graph.tensors[details.scales].buffer

    def _pack(self, graph: Any) -> bytes:
        model = schema.ModelT()
        model.version, model.subgraphs, model.buffers = 3, [graph], self._buffers
        model.operatorCodes = [_operator_code(code) for code in self._codes]
        size = self._bytes + 256 * (len(self._graph.tensors) + len(self._graph.operators)) + 4096
        builder = flatbuffers.Builder(size)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(memoryview(builder.Bytes)[builder.Head() :])

    def _add(
        self,
        shape: Sequence[int],
        kind: int,
        buffer: int,
        signature: Sequence[int] | None,
        quantization: TensorQuantization | None,
    ) -> int:
        tensor = schema.TensorT()
        tensor.shape, tensor.type, tensor.buffer, tensor.hasRank = np.array(shape, np.int32), kind, buffer, True
        tensor.name = f"t{len(self._graph.tensors)}"
        if signature is not None:
            tensor.shapeSignature = np.array(signature, np.int32)
        if quantization is not None:
            tensor.quantization = quantization.table()
            self._bytes += 16 * len(quantization.scales)
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1


def _operator_code(code: int) -> Any:
    operator_code = schema.OperatorCodeT()
    operator_code.builtinCode, operator_code.deprecatedBuiltinCode, operator_code.version = code, min(code, 127), 1
    return operator_code
