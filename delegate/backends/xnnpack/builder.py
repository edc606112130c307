"""The lowering context: turns fx values into TFLite tensors, and keeps the order that their dimensions lie in.

A lowering takes operands of its node's arguments, emits operators, and sets what the node gives:

    x = builder.operand(node.args[0], NHWC)          # transposed once if it lies otherwise; a constant ahead of time
    y = builder.emit("LOGISTIC", [x], shape_of(node), x.order)
    builder.set(node, y)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.fx.node import map_arg

from delegate.backends.aot import Region, RegionRefused
from delegate.backends.xnnpack import layout
from delegate.backends.xnnpack.coding import decoded_as
from delegate.backends.xnnpack.layout import Order
from delegate.backends.xnnpack.mover import Mover
from delegate.backends.xnnpack.operand import Operand, example, shape_of, signature
from delegate.backends.xnnpack.quantized import Coded, Integers
from delegate.backends.xnnpack.tflite import Array
from delegate.edge.node import tensor, tensors


class RegionBuilder(Mover):
    """The model of one region, as its nodes are lowered in order.

    Attributes:
        region: what is lowered.
        nan_kept: in how many places lowerings kept NaN.
        nan_lost: the nodes whose lowerings did not.
        at_run_time: values that layers are to quantize themselves.
    """

    def __init__(self, region: Region, exact_nan: bool = True) -> None:
        super().__init__()
        self.region = region
        self._exact_nan, self.nan_kept = exact_nan, 0
        self.nan_lost: set[str] = set()
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
        found = decoded_as(node)
        if found is not None and dtype is torch.uint8:  # XNNPACK's operators take int8, and it converts floats alone
            held = self.variable(shape, order, replace(found, zero_point=found.zero_point + 128), np.uint8)
            self._inputs.append(held.index)
            self.set(node, self.quantize(self.dequantize(held), found))
            return
        operand = self.variable(shape, order, found)
        self._inputs.append(operand.index)
        self.set(node, operand)

    def keeps_nan(self) -> bool:
        """Return true if a lowering is to keep NaN that XNNPACK's operators lose, see `lowerings.nan`.

        Otherwise the node is noted as one that loses it. Integers have none.
        """
        if self.result is None and not self._exact_nan:
            self.nan_lost.add(self.origin)
        return self._exact_nan and self.result is None

    # -- constants ----------------------------------------------------------------------------------------------------

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
            raise RegionRefused({self.origin: why})
        if node not in self._arrays:
            self._arrays[node] = np.asarray(self._constants[node].detach().to(torch.float32).cpu().numpy())
        return self._arrays[node]

    def values(self, arguments: Any) -> Any:
        """A node's `args` or `kwargs` with tensors in place of its nodes, all of which must be constant."""
        return map_arg(arguments, self._known)

    def _known(self, node: Node) -> torch.Tensor:
        return torch.from_numpy(self.array(node)) if node in self._coded else self._constants[node]

    def weights(self, node: Node) -> Coded | Array:
        """A constant that the model may hold in its small form; rearrange it as an array, then `constant` takes it."""
        return self._coded[node] if node in self._coded else self.array(node)

    def set_constant(self, node: Node, value: torch.Tensor) -> None:
        """Say that a node's value is known now."""
        self._constants[node] = value

    def set_coded(self, node: Node, value: Coded) -> None:
        """Say that a node's value is a constant that is kept in its small form."""
        self._coded[node] = value

    # -- values -------------------------------------------------------------------------------------------------------

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

    def set(self, node: Node, *results: Operand) -> None:
        """Say what a node gives."""
        self._values[node] = list(results)

    # -- elementwise operators ----------------------------------------------------------------------------------------

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

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> tuple[bytes, list[int], list[int]]:
        """The model's bytes, and its input and output tensors in the order of the region's."""
        outputs: list[int] = []
        taken = set(self._inputs)
        for node in self.region.outputs:
            self.origin = node.name
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
