"""A builder of operators and constants of a TFLite model, in floats or in integers, independent of fx."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.layout import Order, Size
from delegate.backends.xnnpack.aot.operand import Operand, example, signature
from delegate.backends.xnnpack.aot.quantized import Coded, Integers, exact
from delegate.backends.xnnpack.aot.tflite import Array, Model, Quantization

# Operators that only move or select values: the result has the parameters of the operands.
_MOVES = frozenset(
    {
        "CONCATENATION", "MAX_POOL_2D", "PAD", "REDUCE_MAX", "REDUCE_MIN", "RESHAPE", "SPLIT", "STRIDED_SLICE",
        "TRANSPOSE",
    }
)  # fmt: skip
_CONVERTS = (2.0**-8, 2.0**7)  # ratios of scales in conversions between integers


@cache
def _takes_activation(table: str) -> bool:
    return bool(table) and hasattr(getattr(schema, f"{table}T")(), "fusedActivationFunction")


def _blocks(coded: Coded) -> str:
    return f"blocks of {coded.block}" if coded.block else f"{coded.scales.size} blocks"


class Emitter:
    """A TFLite model under construction.

    Attributes:
        model: the TFLite model.
        result: parameters of results while an operator is lowered in integers; None while it is lowered in floats.
        activation: TFLite's fused activation while an operator is lowered in integers.
        floats: why operators next to integers were lowered in floats.
        origin: the name of the node that the next operators belong to, for messages about rejections.
    """

    def __init__(self) -> None:
        self.model = Model()
        self.result: Integers | None = None
        self.activation = 0
        self.floats: list[str] = []
        self.origin = ""
        self._small = False  # true if constants stay in integers
        self._decoded: dict[int, Operand] = {}
        self._once: dict[Hashable, Operand] = {}
        self._reordered: dict[tuple[int, Order], Operand] = {}  # no value is moved twice

    # -- operators ----------------------------------------------------------------------------------------------------

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

    # -- orders and shapes --------------------------------------------------------------------------------------------

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
        new = signature(sizes) or list(sizes)
        return self.emit(
            "RESHAPE", [x, self.numbers(new)], shape, order, "ReshapeOptions", newShape=np.array(new, np.int32)
        )

    def slice(self, x: Operand, ranges: Mapping[int, tuple[int, int | None]], shape: Sequence[Size]) -> Operand:
        """Slice a value of at most 5 dimensions, in its order.

        Args:
            x: the value.
            ranges: dimension -> (start, end); start may count from the end, end None is the end itself.
            shape: sizes of the result.
        """
        begin, end, mask = [0] * x.rank, [0] * x.rank, 0
        for axis, dim in enumerate(x.order):
            begin[axis], stop = ranges.get(dim, (0, None))
            end[axis] = stop or 0
            mask |= (stop is None) << axis
        corners = [self.numbers(v) for v in (begin, end, [1] * x.rank)]
        return self.emit("STRIDED_SLICE", [x, *corners], shape, x.order, "StridedSliceOptions", endMask=mask)

    def expand_rank(self, x: Operand, rank: int, order: Order) -> Operand:
        """Add leading sizes of 1 to a value, so that it broadcasts to `rank` dimensions in `order`."""
        missing = rank - x.rank
        own = tuple(d - missing for d in order if d >= missing)
        x = self.reorder(x, own)
        if order[:missing] == tuple(range(missing)):
            return x  # TFLite broadcasts from the right, too
        return self.view(x, (1,) * missing + x.shape, order)

    # -- constants ----------------------------------------------------------------------------------------------------

    def constant(self, array: Array | Coded, order: Order | None = None) -> Operand:
        """Add a constant, passed in logical order, stored in `order` (None: row-major).

        A constant in integers stays in integers. For operators on floats, XNNPACK decodes it when the model is loaded.
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
            y = self.variable(held.shape, order)
            self.model.operator("DEQUANTIZE", [index], [y.index], {"table": "DequantizeOptions"}, self.origin)
            return y
        one = coded.scales.size == 1 and not coded.block
        zero = 0 if coded.zero_point is None else int(coded.zero_point.flat[0])
        return replace(held, type=Integers(float(coded.scales[0]), zero)) if one else held

    def _quantization(self, coded: Coded) -> Quantization | None:
        if coded.scale is None:
            return None
        if coded.block:
            scales = self.model.constant(np.ascontiguousarray(coded.scale, np.float16))
            return Quantization((), (), 0, (scales, coded.block))
        zeros = np.zeros(coded.scale.shape) if coded.zero_point is None else coded.zero_point
        points = tuple(int(z) for z in np.broadcast_to(zeros, coded.scale.shape).reshape(-1))
        return Quantization(tuple(coded.scales.tolist()), points, coded.axis or 0)

    # -- integers -----------------------------------------------------------------------------------------------------

    @contextmanager
    def integers(self, result: Integers, activation: int = 0) -> Iterator[None]:
        """Lower an operator in integers: operands and constants stay in integers, and results have `result`."""
        self.result, self.activation, self._small = result, activation, True
        try:
            yield
        finally:
            self.result, self.activation, self._small = None, 0, False

    @contextmanager
    def intermediate(self, result: Integers) -> Iterator[None]:
        """Set the parameters of an intermediate result of an operator that is lowered in integers as several."""
        final, activation = self.result, self.activation
        if final is not None:
            self.result, self.activation = result, 0
        try:
            yield
        finally:
            self.result, self.activation = final, activation

    @contextmanager
    def small_constants(self) -> Iterator[None]:
        """Lower an operator on floats whose weights stay in integers: XNNPACK quantizes its activations."""
        self._small = True
        try:
            yield
        finally:
            self._small = False

    def quantizes_at_run_time(self, x: Operand, weights: Array | Coded) -> bool:
        """Return true if XNNPACK quantizes the input of a layer with these operands."""
        return self._small and x.type is None and isinstance(weights, Coded)

    def dequantize(self, x: Operand) -> Operand:
        """Return a value as float32; a DEQUANTIZE is emitted at most once per value."""
        if x.type is None:
            return x
        if x.index not in self._decoded:
            y = self.variable(x.shape, x.order)
            self.model.operator("DEQUANTIZE", [x.index], [y.index], {"table": "DequantizeOptions"}, self.origin)
            self._decoded[x.index] = y
        return replace(x, index=self._decoded[x.index].index, type=None)

    def quantize(self, x: Operand, parameters: Integers, dtype: Any = np.int8) -> Operand:
        """Return a value in integers of these parameters: a QUANTIZE, or the value itself if it has them already."""
        if x.type == parameters and dtype is np.int8:
            return x
        if x.type is not None and not _CONVERTS[0] <= x.type.scale / parameters.scale <= _CONVERTS[1]:
            x = self.dequantize(x)
        y = self.variable(x.shape, x.order, parameters, dtype)
        self.model.operator("QUANTIZE", [x.index], [y.index], {"table": "QuantizeOptions"}, self.origin)
        return y

    def bias(self, values: Array, x: Operand, weights: Coded | Array) -> Operand:
        """Add a bias per channel; in integers, it is int32 in units of the product of both scales."""
        if x.type is None or not isinstance(weights, Coded):
            return self.constant(values)
        scales = weights.scales.astype(np.float64) * x.type.scale
        codes = np.rint(values.astype(np.float64) / scales).astype(np.int32)
        quantization = Quantization(tuple(scales.astype(np.float32).tolist()), (0,) * len(scales))
        return Operand(self.model.constant(codes, quantization), values.shape, layout.row_major(1))

    def variable(
        self, shape: tuple[Size, ...], order: Order, kind: Integers | None = None, dtype: Any = np.int8
    ) -> Operand:
        """Add a tensor that is computed at run time; with `kind`, in integers of this dtype that represent reals."""
        sizes = layout.physical(shape, order)
        quantization = None if kind is None else Quantization((kind.scale,), (kind.zero_point,))
        dtype = np.float32 if kind is None else dtype
        index = self.model.tensor([example(s) for s in sizes], signature(sizes), quantization, dtype)
        return Operand(index, shape, order, kind)
