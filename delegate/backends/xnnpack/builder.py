"""The lowering context: turns fx values into TFLite tensors, and keeps the order that their dimensions lie in.

A lowering takes operands of its node's arguments, emits operators, and sets what the node gives:

    x = builder.operand(node.args[0], NHWC)          # transposed once if it lies otherwise; a constant ahead of time
    y = builder.emit("LOGISTIC", [x], shape_of(node), x.order)
    builder.set(node, y)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.fx.node import map_arg

from delegate.backends.aot import Region
from delegate.backends.xnnpack import layout
from delegate.backends.xnnpack.layout import Order, Size
from delegate.backends.xnnpack.tflite import Array, Model
from delegate.edge.node import tensor


@dataclass(frozen=True, slots=True)
class Operand:
    """A float32 value in the model; truth values, which come over the border alone, are 0 and 1.

    Args:
        index: of its TFLite tensor.
        shape: its logical sizes; torch.SymInt for dynamic ones.
        order: physical axis i of the TFLite tensor holds logical dimension order[i].
    """

    index: int
    shape: tuple[Size, ...]
    order: Order

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


def signature(sizes: Sequence[Size]) -> list[int] | None:
    """TFLite's shape signature: -1 for dynamic sizes; None where all are static."""
    found = [s if isinstance(s, int) else -1 for s in sizes]
    return found if -1 in found else None


class RegionBuilder:
    """The model of one region, as its nodes are lowered in order.

    Attributes:
        model: the TFLite model.
        region: what is lowered.
        exact_nan: whether lowerings keep NaN where XNNPACK's operators lose it, see `lowerings.nan`.
        nan_kept: in how many places they did.
    """

    def __init__(self, region: Region, exact_nan: bool = True) -> None:
        self.region = region
        self.exact_nan, self.nan_kept = exact_nan, 0
        self.model = Model()
        self._origin = ""
        self._values: dict[Node, list[Operand]] = {}
        self._arrays: dict[Node, Array] = {}
        self._constants: dict[Node, torch.Tensor] = dict(region.constants)
        self._reordered: dict[tuple[int, Order], Operand] = {}
        self._once: dict[Hashable, Operand] = {}
        self._inputs: list[int] = []
        for node in region.inputs:
            shape = shape_of(node)
            operand = self._activation(shape, layout.row_major(len(shape)))
            self.set(node, operand)
            self._inputs.append(operand.index)

    # -- what lowerings ask -------------------------------------------------------------------------------------------

    def is_constant(self, node: Any) -> bool:
        """Whether a node's value is known now."""
        return node in self._constants

    def array(self, node: Node) -> Array:
        """The value of a constant node, float32, in logical order; raises KeyError for another node."""
        if node not in self._arrays:
            self._arrays[node] = np.asarray(self._constants[node].detach().to(torch.float32).cpu().numpy())
        return self._arrays[node]

    def values(self, arguments: Any) -> Any:
        """A node's `args` or `kwargs` with tensors in place of its nodes, all of which must be constant."""
        return map_arg(arguments, self._constants.__getitem__)

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
            array = self.array(node)
            return self.constant(array, order or layout.row_major(array.ndim))
        found = self._values[node][result]
        return found if order is None else self.reorder(found, order)

    def order_of(self, node: Node) -> Order:
        """The order that a node's value lies in."""
        return layout.row_major(self.array(node).ndim) if self.is_constant(node) else self._values[node][0].order

    def constant(self, array: Array, order: Order | None = None) -> Operand:
        """A float32 constant, given in logical order, stored in `order` (None: row-major)."""
        order = layout.row_major(array.ndim) if order is None else order
        index = self.model.constant(
            np.ascontiguousarray(array.transpose(order), np.float32).reshape([array.shape[d] for d in order])
        )
        return Operand(index, array.shape, order)

    def integers(self, values: Any) -> int:
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
        """Add an operator with one float32 result.

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
        """Add an operator with several float32 results, all in one order; see `emit`."""
        found = [self._activation(tuple(s), layout.row_major(len(s)) if order is None else order) for s in shapes]
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
                perm = self.integers(key[1])
                y = self.emit("TRANSPOSE", [x, perm], x.shape, order, "TransposeOptions")
            self._reordered[key] = y
            self._reordered[(y.index, layout.between(order, x.order))] = x
        found = self._reordered[key]
        return Operand(found.index, x.shape, order)

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
            return Operand(x.index, shape, order)
        new = signature(sizes) or list(sizes)
        return self.emit(
            "RESHAPE", [x, self.integers(new)], shape, order, "ReshapeOptions", newShape=np.array(new, np.int32)
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
        corners = [self.integers(v) for v in (begin, end, [1] * x.rank)]
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
        array = self.array(value) if isinstance(value, Node) else np.asarray(value, np.float32)
        array = array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(order)
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
            if x.index in taken or self.is_constant(node):
                new = signature(x.sizes) or list(x.sizes)
                x = self.emit(
                    "RESHAPE",
                    [x, self.integers(new)],
                    x.shape,
                    None,
                    "ReshapeOptions",
                    newShape=np.array(new, np.int32),
                )
            taken.add(x.index)
            outputs.append(x.index)
        return self.model.finish(self._inputs, outputs), self._inputs, outputs

    def _activation(self, shape: tuple[Size, ...], order: Order) -> Operand:
        sizes = layout.physical(shape, order)
        return Operand(self.model.tensor([example(s) for s in sizes], signature(sizes)), shape, order)
