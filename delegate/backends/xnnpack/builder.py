"""The lowering context: turns fx values into TFLite tensors, and keeps the order that their dimensions lie in.

A lowering takes operands of its node's arguments, emits operators, and sets what the node gives:

    x = builder.operand(node.args[0], NHWC)          # transposed once if it lies otherwise; a constant ahead of time
    y = builder.emit("LOGISTIC", [x], shape_of(node), x.order)
    builder.set(node, y)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from ai_edge_litert import schema_py_generated as schema
from torch.fx import Node
from torch.fx.node import map_arg

from delegate.backends.aot import Region, RegionRefused
from delegate.backends.xnnpack import layout
from delegate.backends.xnnpack.coding import decoded_as
from delegate.backends.xnnpack.layout import Order, Size
from delegate.backends.xnnpack.quantized import Coded, Integers, exact
from delegate.backends.xnnpack.tflite import Array, Model, Quantization
from delegate.edge.node import tensor, tensors

# What only moves values, or picks some of them: the result has the parameters of the operands.
_MOVES = frozenset(
    {
        "CONCATENATION", "MAX_POOL_2D", "PAD", "REDUCE_MAX", "REDUCE_MIN", "RESHAPE", "SPLIT", "STRIDED_SLICE",
        "TRANSPOSE",
    }
)  # fmt: skip
_CONVERTS = (2.0**-8, 2.0**7)  # by how much scales may differ where integers become other integers


@dataclass(frozen=True, slots=True)
class Operand:
    """A value in the model; truth values, which come over the border alone, are 0 and 1 in float32.

    Args:
        index: of its TFLite tensor.
        shape: its logical sizes; torch.SymInt for dynamic ones.
        order: physical axis i of the TFLite tensor holds logical dimension order[i].
        type: how its int8 numbers stand for reals; None for float32.
    """

    index: int
    shape: tuple[Size, ...]
    order: Order
    type: Integers | None = None

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Sizes of the TFLite tensor: in memory order."""
        return layout.physical(self.shape, self.order)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def axis(self, dim: int) -> int:
        """The physical axis that holds a logical dimension; negative dimensions count from the end."""
        return self.order.index(dim % len(self.order))


def shape_of(node: Node) -> tuple[Size, ...]:
    """Logical sizes of the one tensor that a node gives."""
    return tuple(tensor(node).shape)


def example(size: Size) -> int:
    """A size as a number: of a dynamic one, that of the example inputs, or 1 where torch kept none."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return 1 if hint is None else int(hint)


@cache
def _takes_activation(table: str) -> bool:
    return bool(table) and hasattr(getattr(schema, f"{table}T")(), "fusedActivationFunction")


def _blocks(coded: Coded) -> str:
    return f"blocks of {coded.block}" if coded.block else f"{coded.scales.size} blocks"


def signature(sizes: Sequence[Size]) -> list[int] | None:
    """TFLite's shape signature: -1 for dynamic sizes; None where all are static."""
    found = [s if isinstance(s, int) else -1 for s in sizes]
    return found if -1 in found else None


class RegionBuilder:
    """The model of one region, as its nodes are lowered in order.

    Attributes:
        model: the TFLite model.
        region: what is lowered.
        nan_kept: in how many places lowerings kept NaN.
        result: what operators give while an operator is lowered in integers; None while it is in floats.
        floats: why operators next to integers were lowered in floats.
        at_run_time: values that layers are to quantize themselves.
        activation: TFLite's activation that the operator takes over, while one is lowered in integers.
    """

    def __init__(self, region: Region, exact_nan: bool = True) -> None:
        self.region = region
        self._exact_nan, self.nan_kept = exact_nan, 0
        self.model = Model()
        self.result: Integers | None = None
        self.activation = 0
        self.floats: list[str] = []
        self.at_run_time: set[Node] = set()
        self._small = False  # whether constants are taken as they are, not decoded
        self._coded: dict[Node, Coded] = {}
        self._decoded: dict[int, Operand] = {}
        self._origin = ""
        self._values: dict[Node, list[Operand]] = {}
        self._arrays: dict[Node, Array] = {}
        self._constants: dict[Node, torch.Tensor] = dict(region.constants)
        self._reordered: dict[tuple[int, Order], Operand] = {}
        self._once: dict[Hashable, Operand] = {}
        self._inputs: list[int] = []
        for node in region.inputs:
            self._take_input(node)

    def _take_input(self, node: Node) -> None:
        shape, dtype = shape_of(node), tensor(node).dtype
        order = layout.row_major(len(shape))
        found = decoded_as(node)
        if found is not None and dtype is torch.uint8:  # XNNPACK's operators take int8, and it converts floats alone
            held = self._activation(shape, order, replace(found, zero_point=found.zero_point + 128), np.uint8)
            self._inputs.append(held.index)
            self.set(node, self.quantize(self.dequantize(held), found))
            return
        operand = self._activation(shape, order, found)
        self._inputs.append(operand.index)
        self.set(node, operand)

    # -- integers -----------------------------------------------------------------------------------------------------

    @property
    def exact_nan(self) -> bool:
        """Whether lowerings keep NaN where XNNPACK's operators lose it, see `lowerings.nan`; integers have none."""
        return self._exact_nan and self.result is None

    @contextmanager
    def integers(self, result: Integers, activation: int = 0) -> Iterator[None]:
        """Lower an operator in integers: operands and constants are taken as they are, and it gives `result`."""
        self.result, self.activation, self._small = result, activation, True
        try:
            yield
        finally:
            self.result, self.activation, self._small = None, 0, False

    @contextmanager
    def between(self, result: Integers) -> Iterator[None]:
        """What an operator gives on the way, where it is lowered in integers as several."""
        final, activation = self.result, self.activation
        if final is not None:
            self.result, self.activation = result, 0
        try:
            yield
        finally:
            self.result, self.activation = final, activation

    @contextmanager
    def small_constants(self) -> Iterator[None]:
        """Lower an operator on floats whose weights are taken as they are: XNNPACK quantizes its activations."""
        self._small = True
        try:
            yield
        finally:
            self._small = False

    def quantizes_at_run_time(self, x: Operand, weights: Array | Coded) -> bool:
        """Whether a layer of these has XNNPACK quantize what it is given."""
        return self._small and x.type is None and isinstance(weights, Coded)

    def dequantize(self, x: Operand) -> Operand:
        """A value as float32; a DEQUANTIZE is emitted at most once."""
        if x.type is None:
            return x
        if x.index not in self._decoded:
            y = self._activation(x.shape, x.order)
            self.model.operator("DEQUANTIZE", [x.index], [y.index], {"table": "DequantizeOptions"}, self._origin)
            self._decoded[x.index] = y
        return replace(x, index=self._decoded[x.index].index, type=None)

    def quantize(self, x: Operand, wanted: Integers, dtype: Any = np.int8) -> Operand:
        """A value in these integers: a QUANTIZE, also from other integers, or nothing where it has them."""
        if x.type == wanted and dtype is np.int8:
            return x
        if x.type is not None and not _CONVERTS[0] <= x.type.scale / wanted.scale <= _CONVERTS[1]:
            x = self.dequantize(x)
        y = self._activation(x.shape, x.order, wanted, dtype)
        self.model.operator("QUANTIZE", [x.index], [y.index], {"table": "QuantizeOptions"}, self._origin)
        return y

    def set_coded(self, node: Node, value: Coded) -> None:
        """Say that a node's value is a constant that is kept in its small form."""
        self._coded[node] = value

    def weights(self, node: Node) -> Coded | Array:
        """A constant that the model may hold in its small form; rearrange it as an array, then `constant` takes it."""
        return self._coded[node] if node in self._coded else self.array(node)

    def bias(self, values: Array, x: Operand, weights: Coded | Array) -> Operand:
        """A bias per channel: of integers int32, in units of the product of both scales."""
        if x.type is None or not isinstance(weights, Coded):
            return self.constant(values)
        scales = weights.scales.astype(np.float64) * x.type.scale
        codes = np.rint(values.astype(np.float64) / scales).astype(np.int32)
        quantization = Quantization(tuple(scales.astype(np.float32).tolist()), (0,) * len(scales))
        return Operand(self.model.constant(codes, quantization), values.shape, layout.row_major(1))

    # -- what lowerings ask -------------------------------------------------------------------------------------------

    def is_constant(self, node: Any) -> bool:
        """Whether a node's value is known now."""
        return node in self._constants or node in self._coded

    def constant_tensor(self, node: Node) -> torch.Tensor:
        """The value of a constant node as it is; raises KeyError for another node."""
        return self._constants[node].detach().cpu()

    def array(self, node: Node) -> Array:
        """The value of a constant node, float32, in logical order; raises RegionRefused for another node."""
        if node in self._coded:
            return self._coded[node].decoded()
        if node not in self._constants:  # it was one when the check looked, but is decoded elsewhere
            why = f"{node.name} is computed outside of the partition, and XNNPACK packs it ahead of time"
            raise RegionRefused({self._origin: why})
        if node not in self._arrays:
            self._arrays[node] = np.asarray(self._constants[node].detach().to(torch.float32).cpu().numpy())
        return self._arrays[node]

    def values(self, arguments: Any) -> Any:
        """A node's `args` or `kwargs` with tensors in place of its nodes, all of which must be constant."""
        return map_arg(arguments, self._known)

    def _known(self, node: Node) -> torch.Tensor:
        return torch.from_numpy(self.array(node)) if node in self._coded else self._constants[node]

    def has(self, node: Node) -> bool:
        """Whether the node has been lowered already, by itself or together with another."""
        return node in self._values or self.is_constant(node)

    def operand(self, node: Any, order: Order | None = None, result: int = 0) -> Operand:
        """The value of a node, in the order that it has or in the one asked for.

        A transpose is emitted at most once per value and order. Constants are rearranged here.

        Args:
            node: an input, a constant, or a node that was lowered before.
            order: wanted; None for whatever is there (row-major for constants).
            result: which one, of a node with several results.
        """
        if self.is_constant(node):
            array = self.weights(node)
            return self.constant(array, order or layout.row_major(array.ndim))
        found = self._values[node][result]
        if self.result is None and tensors(node)[result].dtype.is_floating_point:
            found = self.dequantize(found)
        return found if order is None else self.reorder(found, order)

    def held(self, node: Node) -> Operand:
        """The value of a node as it lies in the model, integers or floats."""
        return self.operand(node) if self.is_constant(node) else self._values[node][0]

    def order_of(self, node: Node) -> Order:
        """The order that a node's value lies in."""
        return layout.row_major(self.weights(node).ndim) if self.is_constant(node) else self._values[node][0].order

    def type_of(self, node: Node) -> Integers | None:
        """What a node's value lies in; None for floats, and for constants."""
        held = () if self.is_constant(node) else self._values[node][:1]
        return held[0].type if held else None

    def constant(self, array: Array | Coded, order: Order | None = None) -> Operand:
        """A constant, given in logical order, stored in `order` (None: row-major).

        One in its small form stays so; for operators on floats XNNPACK decodes it when the model is loaded.
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

    def _small_constant(self, coded: Coded, order: Order) -> Operand:
        if not coded.is_plain and not (coded.block and self._small):
            self.floats.append(f"int{coded.bits} weights in {_blocks(coded)}: XNNPACK decodes one scale per channel")
            laid = coded.transpose(order)
            values = np.ascontiguousarray(laid.decoded())
            made_of = replace(laid, values=np.ascontiguousarray(laid.values)) if laid.in_runs else None
            return Operand(self.model.constant(values, coded=made_of), coded.shape, order)
        laid = coded.transpose(order)
        bits = 4 if coded.bits == 4 and self._small else 0
        index = self.model.constant(np.ascontiguousarray(laid.values), self._quantization(laid), bits)
        held = Operand(index, coded.shape, order)
        if not self._small:
            y = self._activation(held.shape, order)
            self.model.operator("DEQUANTIZE", [index], [y.index], {"table": "DequantizeOptions"}, self._origin)
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

    def numbers(self, values: Any) -> int:
        """The tensor of an int32 constant, such as axes or paddings, for `inputs` of `emit`."""
        return self.model.constant(np.asarray(values, np.int32))

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
            inputs: operands, or tensor indices (-1 for one left out).
            shape: logical sizes of the result.
            order: how the operator lays the result out; None: row-major.
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
        found = [self._activation(tuple(s), plain(len(s)) if order is None else order, kind) for s in shapes]
        self.model.operator(
            name,
            [x.index if isinstance(x, Operand) else x for x in inputs],
            [y.index for y in found],
            {"table": table, **options} if table else {},
            self._origin,
        )
        return found

    def set(self, node: Node, *results: Operand) -> None:
        """Say what a node gives."""
        self._values[node] = list(results)

    def set_constant(self, node: Node, value: torch.Tensor) -> None:
        """Say that a node's value is known now."""
        self._constants[node] = value

    def once(self, key: Hashable, make: Callable[[], Operand]) -> Operand:
        """What `make` gives; it is called once for all that name one key, such as layers that share a mask."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    # -- moving data --------------------------------------------------------------------------------------------------

    def reorder(self, x: Operand, order: Order) -> Operand:
        """The same value in another order: a TRANSPOSE, made once, or a RESHAPE where only sizes of 1 move."""
        if x.order == order:
            return x
        key = (x.index, layout.between(x.order, order))
        if key not in self._reordered:
            unknown = sum(type(s) is not int for s in x.shape)  # a RESHAPE infers one at most
            if unknown <= 1 and layout.same_memory(x.shape, x.order, order):
                y = self.view(x, x.shape, order)
            else:
                perm = self.numbers(key[1])
                y = self.emit("TRANSPOSE", [x, perm], x.shape, order, "TransposeOptions")
            self._reordered[key] = y
            self._reordered[(y.index, layout.between(order, x.order))] = x
        found = self._reordered[key]
        return replace(x, index=found.index, order=order)

    def reshape(self, x: Operand, shape: Sequence[Size]) -> Operand:
        """`torch.reshape`: keeps the memory order where the reshape allows it, else goes through row-major."""
        shape = tuple(shape)
        order = layout.reshape(x.shape, shape, x.order)
        if order is None:
            x = self.reorder(x, layout.row_major(x.rank))
            order = layout.row_major(len(shape))
        return self.view(x, shape, order)

    def view(self, x: Operand, shape: tuple[Size, ...], order: Order) -> Operand:
        """The same memory as a tensor of another logical shape in another order: a RESHAPE, or nothing at all.

        The caller makes sure that element for element it is the same memory, see `layout.reshape`.
        """
        sizes = layout.physical(shape, order)
        if len(sizes) == x.rank and all(map(layout.equal, sizes, x.sizes)):
            return replace(x, shape=shape, order=order)
        new = signature(sizes) or list(sizes)
        return self.emit(
            "RESHAPE", [x, self.numbers(new)], shape, order, "ReshapeOptions", newShape=np.array(new, np.int32)
        )

    def slice(self, x: Operand, ranges: Mapping[int, tuple[int, int | None]], shape: Sequence[Size]) -> Operand:
        """Part of a value of at most 5 dimensions, in its order.

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
        """A value of lower rank as it broadcasts to `rank` dimensions that lie in `order`: leading sizes of 1 added."""
        missing = rank - x.rank
        own = tuple(d - missing for d in order if d >= missing)
        x = self.reorder(x, own)
        if order[:missing] == tuple(range(missing)):
            return x  # TFLite broadcasts from the right, too
        return self.view(x, (1,) * missing + x.shape, order)

    def scalar(self, value: float) -> Operand:
        """A float32 number."""
        return self.constant(np.asarray(value, np.float32))

    def broadcast(self, values: Sequence[Any], rank: int, order: Order) -> list[Operand]:
        """Operands of an elementwise operator whose result of `rank` dimensions lies in `order`.

        Args:
            values: fx nodes, operands or plain numbers; constants are prepared ahead of time.
            rank: of the result.
            order: of the result.
        """
        found = [self._broadcast(value, rank, order) for value in values]
        if len(found) > 1 and all(x.rank < rank for x in found):  # one must bring the result's leading sizes of 1
            static = [i for i, x in enumerate(found) if signature(x.sizes) is None]  # a RESHAPE infers few sizes
            at = static[0] if static else 0
            x = found[at]
            found[at] = self.view(x, (1,) * (rank - x.rank) + x.shape, self._led(x.order, rank))
        return found

    @staticmethod
    def _led(order: Order, rank: int) -> Order:
        """An order with leading dimensions put before it."""
        missing = rank - len(order)
        return (*range(missing), *(d + missing for d in order))

    def _broadcast(self, value: Any, rank: int, order: Order) -> Operand:
        if isinstance(value, Operand):
            return self.expand_rank(value, rank, order)
        if isinstance(value, Node) and not self.is_constant(value):
            return self.expand_rank(self.operand(value), rank, order)
        array = self.weights(value) if isinstance(value, Node) else np.asarray(value, np.float32)
        array = array[(None,) * (rank - array.ndim) + (slice(None),) * array.ndim].transpose(order)
        while array.ndim and array.shape[0] == 1:
            array = array[0]
        return self.constant(array)

    def common_order(self, values: Sequence[Any], rank: int) -> Order:
        """The order in which an elementwise operator on these nodes, operands and numbers moves the fewest elements.

        Only values of full rank that are not constant have a say.
        """
        weights: dict[Order, int] = {}
        for value in values:
            is_variable = isinstance(value, Node) and not self.is_constant(value)
            x = self.operand(value) if is_variable else value
            if isinstance(x, Operand) and x.rank == rank:
                count = math.prod(example(s) for s in x.shape)
                for order in [o for o in weights if layout.same_memory(x.shape, x.order, o)] or [x.order]:
                    weights[order] = weights.get(order, 0) + count
        return max(weights, key=lambda o: weights[o]) if weights else layout.row_major(rank)

    # -- the way through ----------------------------------------------------------------------------------------------

    def at(self, node: Node) -> None:
        """Operators emitted from here on belong to this node, in messages about refusals."""
        self._origin = node.name

    def finish(self) -> tuple[bytes, list[int], list[int]]:
        """The model's bytes, and its input and output tensors in the order of the region's."""
        outputs: list[int] = []
        taken = set(self._inputs)
        for node in self.region.outputs:
            self.at(node)
            x = self.operand(node, layout.row_major(len(shape_of(node))))
            if tensor(node).dtype is torch.uint8 and x.type is not None:
                wanted = Integers(x.type.scale, x.type.zero_point + 128)
                x = self.quantize(self.dequantize(x), wanted, np.uint8)
            if x.index in taken or self.is_constant(node):
                new = signature(x.sizes) or list(x.sizes)
                x = self.emit(
                    "RESHAPE",
                    [x, self.numbers(new)],
                    x.shape,
                    None,
                    "ReshapeOptions",
                    newShape=np.array(new, np.int32),
                )
            taken.add(x.index)
            outputs.append(x.index)
        return self.model.finish(self._inputs, outputs), self._inputs, outputs

    def _activation(
        self, shape: tuple[Size, ...], order: Order, kind: Integers | None = None, dtype: Any = np.int8
    ) -> Operand:
        sizes = layout.physical(shape, order)
        quantization = None if kind is None else Quantization((kind.scale,), (kind.zero_point,))
        dtype = np.float32 if kind is None else dtype
        index = self.model.tensor([example(s) for s in sizes], signature(sizes), quantization, dtype)
        return Operand(index, shape, order, kind)
