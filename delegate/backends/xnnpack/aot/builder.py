"""The lowering context: converts fx values to TFLite tensors, and tracks the order of their dimensions.

A lowering gets operands for its node's arguments, emits operators, and sets the node's results:

    x = builder.operand(node.args[0], NHWC)          # transposed once if its order differs; a constant ahead of time
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
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.coding import decoded_as
from delegate.backends.xnnpack.aot.emitter import Emitter
from delegate.backends.xnnpack.aot.layout import Order
from delegate.backends.xnnpack.aot.operand import Operand, example, shape_of, signature
from delegate.backends.xnnpack.aot.quantized import Coded, Integers
from delegate.backends.xnnpack.aot.tflite import Array
from delegate.edge.node import tensor, tensors


class RegionBuilder(Emitter):
    """The model of one region, as its nodes are lowered in order.

    Attributes:
        region: the region to lower.
        nan_guards: number of places where lowerings propagate NaN.
        nan_lost: the nodes whose lowerings lose NaN.
        at_run_time: values that layers quantize at run time.
    """

    def __init__(self, region: Region, exact_nan: bool = True) -> None:
        super().__init__()
        self.region = region
        self._exact_nan, self.nan_guards = exact_nan, 0
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
        parameters = decoded_as(node)
        if parameters is not None and dtype is torch.uint8:  # XNNPACK's operators take int8; only floats become uint8
            stored = self.variable(shape, order, replace(parameters, zero_point=parameters.zero_point + 128), np.uint8)
            self._inputs.append(stored.index)
            self.set(node, self.quantize(self.dequantize(stored), parameters))
            return
        operand = self.variable(shape, order, parameters)
        self._inputs.append(operand.index)
        self.set(node, operand)

    def keeps_nan(self) -> bool:
        """Return true if a lowering must propagate NaN that XNNPACK's operators lose, see `lowerings.nan`.

        If not, record the node in `nan_lost`. Integers have no NaN.
        """
        if self.result is None and not self._exact_nan:
            self.nan_lost.add(self.origin)
        return self._exact_nan and self.result is None

    # -- constants ----------------------------------------------------------------------------------------------------

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
            why = f"{node.name} is computed outside of the partition, and XNNPACK packs it ahead of time"
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

    def set_constant(self, node: Node, value: torch.Tensor) -> None:
        """Set the constant value of a node."""
        self._constants[node] = value

    def set_coded(self, node: Node, value: Coded) -> None:
        """Set the constant value of a node, stored in integers."""
        self._coded[node] = value

    # -- values -------------------------------------------------------------------------------------------------------

    def has(self, node: Node) -> bool:
        """Return true if the node was lowered already, by itself or with another node."""
        return node in self._values or self.is_constant(node)

    def operand(self, node: Any, order: Order | None = None, result: int = 0) -> Operand:
        """Return the value of a node, in its own order or in the requested one.

        A transpose is emitted at most once per value and order. Constants are rearranged here.

        Args:
            node: an input, a constant, or a node that was lowered before.
            order: the requested order; None for the present one (row-major for constants).
            result: index of the result of a node with several results.
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

    def order_of(self, node: Node) -> Order:
        """Return the order of a node's value."""
        return layout.row_major(self.weights(node).ndim) if self.is_constant(node) else self._values[node][0].order

    def type_of(self, node: Node) -> Integers | None:
        """Return the parameters of a node's integers; None for floats, and for constants."""
        held = () if self.is_constant(node) else self._values[node][:1]
        return held[0].type if held else None

    def set(self, node: Node, *results: Operand) -> None:
        """Set the results of a node."""
        self._values[node] = list(results)

    # -- elementwise operators ----------------------------------------------------------------------------------------

    def broadcast(self, values: Sequence[Any], rank: int, order: Order) -> list[Operand]:
        """Return the operands of an elementwise operator whose result has `rank` dimensions and `order`.

        Args:
            values: fx nodes, operands or plain numbers; constants are prepared ahead of time.
            rank: of the result.
            order: of the result.
        """
        operands = [self._broadcast(value, rank, order) for value in values]
        if len(operands) > 1 and all(x.rank < rank for x in operands):  # one must have the result's leading sizes of 1
            static = [i for i, x in enumerate(operands) if signature(x.sizes) is None]  # a RESHAPE infers few sizes
            at = static[0] if static else 0
            x = operands[at]
            operands[at] = self.view(x, (1,) * (rank - x.rank) + x.shape, self._with_leading_dimensions(x.order, rank))
        return operands

    @staticmethod
    def _with_leading_dimensions(order: Order, rank: int) -> Order:
        """Return an order with leading dimensions added."""
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
        """Return the order in which an elementwise operator on these values moves the fewest elements.

        Only values of full rank that are not constant count.
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

    # -- result -------------------------------------------------------------------------------------------------------

    def finish(self) -> tuple[bytes, list[int], list[int]]:
        """Return the model's bytes, and its input and output tensors in the order of the region's."""
        outputs: list[int] = []
        used = set(self._inputs)
        for node in self.region.outputs:
            self.origin = node.name
            x = self.operand(node, layout.row_major(len(shape_of(node))))
            if tensor(node).dtype is torch.uint8 and x.type is not None:
                parameters = Integers(x.type.scale, x.type.zero_point + 128)
                x = self.quantize(self.dequantize(x), parameters, np.uint8)
            if x.index in used or self.is_constant(node):
                sizes = signature(x.sizes) or list(x.sizes)
                x = self.emit(
                    "RESHAPE",
                    [x, self.numbers(sizes)],
                    x.shape,
                    None,
                    "ReshapeOptions",
                    newShape=np.array(sizes, np.int32),
                )
            used.add(x.index)
            outputs.append(x.index)
        return self.model.finish(self._inputs, outputs), self._inputs, outputs
