"""The lowering context: converts fx values to TFLite tensors, and tracks the order of their dimensions.

A lowering gets operands for its node's arguments, emits operators, and sets the node's results:

    x = builder.operand(node.args[0], NHWC)          # transposed once if its order differs; a constant ahead of time
    y = builder.emit("LOGISTIC", [x], shape_of(node), x.order)
    builder.set(node, y)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from ai_edge_litert import schema_py_generated as schema
from torch.fx import Node
from torch.fx.node import map_arg

from delegate.backend.aot import Region, RegionRefused
from delegate.backend.qdq import Coded
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.layout import Order, Size
from delegate.backends.xnnpack.aot.operand import (
    Integers,
    Operand,
    decoding_parameters,
    exact,
    example,
    shape_of,
    signature,
)
from delegate.backends.xnnpack.aot.tflite import Array, Model, TensorQuantization
from delegate.edge.node import tensor, tensors

# Operators that only move or select values: the result has the parameters of the operands.
_MOVES = frozenset((
    "CONCATENATION", "MAX_POOL_2D", "PAD", "REDUCE_MAX", "REDUCE_MIN", "RESHAPE", "SPLIT", "STRIDED_SLICE", "TRANSPOSE",
))  # fmt: skip
_CONVERTS = (2.0**-8, 2.0**7)  # ratios of scales in conversions between integers


@cache
def _takes_activation(table: str) -> bool:
    return bool(table) and hasattr(getattr(schema, f"{table}T")(), "fusedActivationFunction")


def _blocks(coded: Coded) -> str:
    return f"blocks of {coded.block}" if coded.block else f"{coded.scales.size} blocks"


class RegionBuilder:
    """The model of one region, as its nodes are lowered in order.

    Args:
        region: the region to lower.
        exact_nan: true if lowerings propagate NaN that XNNPACK's operators lose.

    Attributes:
        region: the region to lower.
        model: the TFLite model.
        result: parameters of results while an operator is lowered in integers; None while it is lowered in floats.
        activation: TFLite's fused activation while an operator is lowered in integers.
        floats: why operators next to integers were lowered in floats.
        origin: the name of the node that the next operators belong to, for messages about rejections.
        nan_guards: number of places where lowerings propagate NaN.
        nan_lost: the nodes whose lowerings lose NaN.
        infinity_lost: the nodes whose lowerings may return NaN for infinities.
        at_run_time: values that layers quantize at run time.
    """

    def __init__(self, region: Region, exact_nan: bool = True) -> None:
        self.region = region
        self.model = Model()
        self.result: Integers | None = None
        self.activation = 0
        self.floats: list[str] = []
        self.origin = ""
        self._small = False  # true if constants stay in integers
        self._decoded: dict[int, Operand] = {}
        self._once: dict[Hashable, Operand] = {}
        self._reordered: dict[tuple[int, Order], Operand] = {}
        self._exact_nan, self.nan_guards = exact_nan, 0
        self.nan_lost: set[str] = set()
        self.infinity_lost: set[str] = set()
        self.at_run_time: set[Node] = set()
        self._coded: dict[Node, Coded] = {}
        self._values: dict[Node, list[Operand]] = {}
        self._arrays: dict[Node, Array] = {}
        self._constants: dict[Node, torch.Tensor] = dict(region.constants)
        self._inputs: list[int] = []
        for node in region.inputs:
            self._take_input(node)

    def _take_input(self, node: Node) -> None:
        shape, dtype = shape_of(node), tensor(node).dtype
        order = layout.row_major(len(shape))
        parameters = decoding_parameters(node)
        if parameters is not None and dtype is torch.uint8:  # XNNPACK's operators take int8; only floats become uint8
            stored = self.variable(shape, order, replace(parameters, zero_point=parameters.zero_point + 128), np.uint8)
            self._inputs.append(stored.index)
            self.set(node, self.quantize(self.dequantize(stored), parameters))
            return
        operand = self.variable(shape, order, parameters)
        self._inputs.append(operand.index)
        self.set(node, operand)

    def keeps_nan(self) -> bool:
        """Return true if a lowering must propagate NaN that XNNPACK's operators lose, see `lowerings.table`.

        If not, record the node in `nan_lost`, since integers have no NaN.
        """
        if self.result is None and not self._exact_nan:
            self.nan_lost.add(self.origin)
        return self._exact_nan and self.result is None

    def may_lose_infinity(self) -> None:
        """Record that XNNPACK may return NaN for infinities of the node; integers have none."""
        if self.result is None:
            self.infinity_lost.add(self.origin)

    # -- constants of the region ---------------------------------------------------------------------------------------

    def is_constant(self, node: Any) -> bool:
        """Return true if a node's value is known now."""
        return node in self._constants or node in self._coded

    def constant_tensor(self, node: Node) -> torch.Tensor:
        """Return the value of a constant node; raise KeyError for another node."""
        return self._constants[node].detach().cpu()

    def array(self, node: Node) -> Array:
        """Return the value of a constant node, float32, in logical order; raise RegionRefused for another node."""
        if node in self._coded:
            return self._coded[node].decoded()
        if node not in self._constants:  # the check accepted a constant, but another partition decodes it
            why = f"{node.name} is computed outside of the partition, but XNNPACK packs it ahead of time"
            raise RegionRefused({self.origin: why})
        if node not in self._arrays:
            self._arrays[node] = np.asarray(self._constants[node].detach().to(torch.float32).cpu().numpy())
        return self._arrays[node]

    def values(self, arguments: Any) -> Any:
        """Return a node's `args` or `kwargs` with tensors instead of nodes, all of which must be constant."""
        return map_arg(arguments, self._constant_value)

    def _constant_value(self, node: Node) -> torch.Tensor:
        return torch.from_numpy(self.array(node)) if node in self._coded else self._constants[node]

    def weights(self, node: Node) -> Coded | Array:
        """Return a constant, in integers if possible; `constant` accepts it, also rearranged like an array."""
        return self._coded[node] if node in self._coded else self.array(node)

    def set_constant(self, node: Node, value: torch.Tensor | Coded) -> None:
        """Set the constant value of a node, which may be stored in integers."""
        if isinstance(value, Coded):
            self._coded[node] = value
        else:
            self._constants[node] = value

    # -- values --------------------------------------------------------------------------------------------------------

    def has(self, node: Node) -> bool:
        """Return true if the node was lowered already, by itself or with another node."""
        return node in self._values or self.is_constant(node)

    def operand(self, node: Any, order: Order | None = None, result: int = 0) -> Operand:
        """Return the value of a node, in its own order or in the requested one.

        A transpose is emitted at most once per value and order, and constants are rearranged here.

        Args:
            node: an input, a constant, or a node that was lowered before.
            order: the requested order; None for the present one (row-major for constants).
            result: which of a node's several results this is.
        """
        if self.is_constant(node):
            array = self.weights(node)
            return self.constant(array, order or layout.row_major(array.ndim))
        value = self._values[node][result]
        if self.result is None and tensors(node)[result].dtype.is_floating_point:
            value = self.dequantize(value)
        return value if order is None else self.reorder(value, order)

    def held(self, node: Node) -> Operand:
        """Return the value of a node as the model stores it, in integers or floats."""
        return self.operand(node) if self.is_constant(node) else self._values[node][0]

    def type_of(self, node: Node) -> Integers | None:
        """Return the parameters of a node's integers; None for floats, and for constants."""
        held = () if self.is_constant(node) else self._values[node][:1]
        return held[0].type if held else None

    def set(self, node: Node, *results: Operand) -> None:
        """Set the results of a node."""
        self._values[node] = list(results)

    # -- operators -----------------------------------------------------------------------------------------------------

    def emit(
        self,
        name: str,
        inputs: Sequence[Operand | int],
        shape: Sequence[Size],
        order: Order | None = None,
        table: str = "",
        **options: Any,
    ) -> Operand:
        """Add an operator with one result, float32 or, while an operator is lowered in integers, in integers.

        Args:
            name: TFLite's name, e.g. "CONV_2D".
            inputs: operands, or tensor indices (-1 for an omitted one).
            shape: logical sizes of the result.
            order: order of the result's dimensions in memory; None: row-major.
            table: name of its options table, e.g. "Conv2DOptions"; empty for none.
            options: fields of the options table, e.g. strideW=2.
        """
        return self.emit_many(name, inputs, [shape], order, table, **options)[0]

    def emit_many(
        self,
        name: str,
        inputs: Sequence[Operand | int],
        shapes: Sequence[Sequence[Size]],
        order: Order | None = None,
        table: str = "",
        **options: Any,
    ) -> list[Operand]:
        """Add an operator with several results, all in one order; see `emit`."""
        kind = self.result
        if name in _MOVES:
            kind = next(x.type for x in inputs if isinstance(x, Operand))
            if self.result is not None and name == "CONCATENATION":
                kind = self.result
                inputs = [self.quantize(x, kind) if isinstance(x, Operand) else x for x in inputs]
        elif self.activation and _takes_activation(table):
            options["fusedActivationFunction"] = self.activation
        plain = layout.row_major
        results = [self.variable(tuple(s), plain(len(s)) if order is None else order, kind) for s in shapes]
        self.model.operator(
            name,
            [x.index if isinstance(x, Operand) else x for x in inputs],
            [y.index for y in results],
            {"table": table, **options} if table else {},
            self.origin,
        )
        return results

    def once(self, key: Hashable, make: Callable[[], Operand]) -> Operand:
        """Return the result of `make`, which is called once per key, e.g. for all layers that share a mask."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    # -- constants of the model ----------------------------------------------------------------------------------------

    def constant(self, array: Array | Coded, order: Order | None = None) -> Operand:
        """Add a constant, passed in logical order, stored in `order` (None: row-major).

        A constant in integers stays in integers; for operators on floats, XNNPACK decodes it when the model is loaded.
        """
        order = layout.row_major(array.ndim) if order is None else order
        if isinstance(array, Coded):
            return self._small_constant(array, order)
        coded = exact(array) if self.result is not None else None
        if coded is not None:
            return self._small_constant(coded, order)
        index = self.model.constant(
            np.ascontiguousarray(array.transpose(order), np.float32).reshape([array.shape[d] for d in order])
        )
        return Operand(index, array.shape, order)

    def scalar(self, value: float) -> Operand:
        """Add a float32 number."""
        return self.constant(np.asarray(value, np.float32))

    def numbers(self, values: Any) -> int:
        """Add an int32 constant, such as axes or paddings, and return its tensor for `inputs` of `emit`."""
        return self.model.constant(np.asarray(values, np.int32))

    def _small_constant(self, coded: Coded, order: Order) -> Operand:
        if not coded.is_plain and not (coded.block and self._small):
            self.floats.append(f"int{coded.bits} weights in {_blocks(coded)}: XNNPACK decodes one scale per channel")
            rearranged = coded.transpose(order)
            values = np.ascontiguousarray(rearranged.decoded())
            integers = (
                replace(rearranged, values=np.ascontiguousarray(rearranged.values)) if rearranged.in_runs else None
            )
            return Operand(self.model.constant(values, coded=integers), coded.shape, order)
        rearranged = coded.transpose(order)
        bits = 4 if coded.bits == 4 and self._small else 0
        index = self.model.constant(np.ascontiguousarray(rearranged.values), self._quantization(rearranged), bits)
        held = Operand(index, coded.shape, order)
        if not self._small:
            return self._convert("DEQUANTIZE", held)
        one = coded.scales.size == 1 and not coded.block
        zero = 0 if coded.zero_point is None else int(coded.zero_point.flat[0])
        return replace(held, type=Integers(float(coded.scales[0]), zero)) if one else held

    def _quantization(self, coded: Coded) -> TensorQuantization | None:
        if coded.scale is None:
            return None
        if coded.block:
            rounded = torch.from_numpy(np.ascontiguousarray(coded.scale, np.float32)).bfloat16()  # as XNNPACK does
            scales = self.model.constant(rounded.half().numpy())
            return TensorQuantization((), (), 0, (scales, coded.block))
        zeros = np.zeros(coded.scale.shape) if coded.zero_point is None else coded.zero_point
        points = tuple(int(z) for z in np.broadcast_to(zeros, coded.scale.shape).reshape(-1))
        return TensorQuantization(tuple(coded.scales.tolist()), points, coded.axis or 0)

    # -- integers ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _setting(self, result: Integers | None, activation: int, small: bool) -> Iterator[None]:
        before = self.result, self.activation, self._small
        self.result, self.activation, self._small = result, activation, small
        try:
            yield
        finally:
            self.result, self.activation, self._small = before

    def integers(self, result: Integers, activation: int = 0) -> AbstractContextManager[None]:
        """Lower an operator in integers: operands and constants stay in integers, and results have `result`."""
        return self._setting(result, activation, small=True)

    def intermediate(self, result: Integers) -> AbstractContextManager[None]:
        """Set the parameters of an intermediate result of an operator that is lowered in integers as several."""
        return nullcontext() if self.result is None else self._setting(result, 0, self._small)

    def small_constants(self) -> AbstractContextManager[None]:
        """Lower an operator on floats whose weights stay in integers: XNNPACK quantizes its activations."""
        return self._setting(self.result, self.activation, small=True)

    def quantizes_at_run_time(self, x: Operand, weights: Array | Coded) -> bool:
        """Return true if XNNPACK quantizes the input of a layer with these operands."""
        return self._small and x.type is None and isinstance(weights, Coded)

    def dequantize(self, x: Operand) -> Operand:
        """Return a value as float32; a DEQUANTIZE is emitted at most once per value."""
        if x.type is None:
            return x
        if x.index not in self._decoded:
            self._decoded[x.index] = self._convert("DEQUANTIZE", x)
        return replace(x, index=self._decoded[x.index].index, type=None)

    def quantize(self, x: Operand, parameters: Integers, dtype: Any = np.int8) -> Operand:
        """Return a value in integers of these parameters: a QUANTIZE, or the value itself if it has them already."""
        if x.type == parameters and dtype is np.int8:
            return x
        if x.type is not None and not _CONVERTS[0] <= x.type.scale / parameters.scale <= _CONVERTS[1]:
            x = self.dequantize(x)
        return self._convert("QUANTIZE", x, parameters, dtype)

    def _convert(self, name: str, x: Operand, kind: Integers | None = None, dtype: Any = np.int8) -> Operand:
        y = self.variable(x.shape, x.order, kind, dtype)
        self.model.operator(name, [x.index], [y.index], {"table": f"{name.capitalize()}Options"}, self.origin)
        return y

    def variable(
        self, shape: tuple[Size, ...], order: Order, kind: Integers | None = None, dtype: Any = np.int8
    ) -> Operand:
        """Add a tensor that is computed at run time; with `kind`, in integers of this dtype that represent reals."""
        sizes = layout.physical(shape, order)
        quantization = None if kind is None else TensorQuantization((kind.scale,), (kind.zero_point,))
        dtype = np.float32 if kind is None else dtype
        index = self.model.tensor([example(s) for s in sizes], signature(sizes), quantization, dtype)
        return Operand(index, shape, order, kind)

    # -- movements; no value is moved twice ----------------------------------------------------------------------------

    def reorder(self, x: Operand, order: Order) -> Operand:
        """Return a value in another order: a TRANSPOSE, emitted once, or a RESHAPE if only sizes of 1 move."""
        if x.order == order:
            return x
        key = (x.index, layout.transposition(x.order, order))
        if key not in self._reordered:
            unknown = sum(type(s) is not int for s in x.shape)  # a RESHAPE infers one at most
            if unknown <= 1 and layout.same_memory(x.shape, x.order, order):
                y = self.view(x, x.shape, order)
            else:
                perm = self.numbers(key[1])
                y = self.emit("TRANSPOSE", [x, perm], x.shape, order, "TransposeOptions")
            self._reordered[key] = y
            self._reordered[(y.index, layout.transposition(order, x.order))] = x
        reordered = self._reordered[key]
        return replace(x, index=reordered.index, order=order)

    def reshape(self, x: Operand, shape: Sequence[Size]) -> Operand:
        """Reshape as `torch.reshape` does, in the same memory order if possible, else through row-major."""
        shape = tuple(shape)
        order = layout.reshape(x.shape, shape, x.order)
        if order is None:
            x = self.reorder(x, layout.row_major(x.rank))
            order = layout.row_major(len(shape))
        return self.view(x, shape, order)

    def view(self, x: Operand, shape: tuple[Size, ...], order: Order) -> Operand:
        """View the same memory as a tensor of another shape and order: a RESHAPE, or no operator.

        The caller ensures that the memory is the same, element by element; see `layout.reshape`.
        """
        sizes = layout.physical(shape, order)
        if len(sizes) == x.rank and all(map(layout.equal, sizes, x.sizes)):
            return replace(x, shape=shape, order=order)
        return self._reshape(x, shape, order)

    def _reshape(self, x: Operand, shape: tuple[Size, ...], order: Order) -> Operand:
        sizes = layout.physical(shape, order)
        new = np.array(signature(sizes) or sizes, np.int32)
        return self.emit("RESHAPE", [x, self.numbers(new)], shape, order, "ReshapeOptions", newShape=new)

    # -- result --------------------------------------------------------------------------------------------------------

    def finish(self) -> bytes:
        """Return the model's bytes; its inputs and outputs are in the order of the region's."""
        outputs: list[int] = []
        used = set(self._inputs)
        for node in self.region.outputs:
            self.origin = node.name
            x = self.operand(node, layout.row_major(len(shape_of(node))))
            if tensor(node).dtype is torch.uint8 and x.type is not None:
                parameters = Integers(x.type.scale, x.type.zero_point + 128)
                x = self.quantize(self.dequantize(x), parameters, np.uint8)
            if x.index in used or self.is_constant(node):
                x = self._reshape(x, x.shape, x.order)
            used.add(x.index)
            outputs.append(x.index)
        return self.model.finish(self._inputs, outputs)
