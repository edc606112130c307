"""Quantization in a graph: the nodes that quantize and decode, the patterns of exporters, and constants in integers."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch.fx import Node

from delegate.edge.node import arguments, is_constant, op_name, tensor

Array = np.ndarray[Any, np.dtype[Any]]

QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
# Operators that decode constants, with parameters per tensor and others.
DECODES = (
    DEQUANTIZE,
    "quantized_decomposed.dequantize_per_channel.default",
    "quantized_decomposed.dequantize_per_channel_group.default",
    "torchao.dequantize_affine.default",
)
# The parts of a quantization at run time: the parameters are chosen, the values quantized and decoded by them.
CHOOSES = (
    "quantized_decomposed.choose_qparams.tensor",
    "quantized_decomposed.choose_qparams_symmetric.tensor",
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default",
    "quantized_decomposed.choose_qparams_per_token.default",
    "torchao.choose_qparams_affine.default",
)
QUANTIZES_BY = (
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_token.default",
    "torchao.quantize_affine.default",
)
DECODES_BY = (
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_token.default",
    "torchao.dequantize_affine.default",
)
RUN_TIME = frozenset((*CHOOSES, *QUANTIZES_BY, *DECODES_BY))
AFFINE = frozenset(name for name in RUN_TIME if name.startswith("torchao."))
_VIEWS = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
SHIFT = {torch.int8: 0, torch.uint8: 128}  # the number whose subtraction makes int8 of a type
_ANY_SCALE = (float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max))


def is_known(node: Node) -> bool:
    """Return true if a node is a constant, or decodes one."""
    if node.op == "call_function" and op_name(node) in DECODES:
        return all(map(is_constant, node.all_input_nodes))
    return is_constant(node)


def chain(dequantize: Any) -> tuple[Node, tuple[Node, ...]] | None:
    """Return the value that is quantized at run time and decoded again, and the nodes that do so; else None."""
    if not (isinstance(dequantize, Node) and op_name(dequantize) in DECODES_BY):
        return None
    quantize = dequantize.args[0]
    if not (isinstance(quantize, Node) and op_name(quantize) in QUANTIZES_BY):
        return None
    picks = [n for n in quantize.all_input_nodes[1:] if n.target is operator.getitem]
    chosen = {cast(Node, n.args[0]) for n in picks}
    if len(chosen) != 1:
        return None
    choose = chosen.pop()
    source = quantize.args[0]
    if op_name(choose) not in CHOOSES or choose.args[0] is not source or not isinstance(source, Node):
        return None
    return source, (choose, *dict.fromkeys(picks), quantize, dequantize)


def coded(node: Node, values: Any, scales: tuple[float, float] = _ANY_SCALE) -> Coded | str:
    """Return the constant that a node decodes, in integers; or the reason why a model cannot hold it.

    Args:
        node: A node that calls one of `DECODES`.
        values: its arguments by name, with tensors instead of nodes.
        scales: the smallest and the largest scale that the model can hold.
    """
    source = values["input"]
    shift = SHIFT.get(source.dtype)
    if shift is None:
        return f"values of {source.dtype}, but only int8 and uint8 are supported".replace("torch.", "")
    numbers = (source ^ shift).view(torch.int8).numpy() if shift else source.numpy()
    scale, zero = _parameters(op_name(node), values, source.shape)
    if scale is None:
        return f"blocks of {values['block_size']}, which do not divide {list(source.shape)}"
    if not np.all((scale >= scales[0]) & (scale <= scales[1])):
        return f"scales outside {scales[0]:.2g} to {scales[1]:.2g}"
    if zero is not None and np.any(zero % 1):
        return "zero points that are not whole numbers"
    if zero is not None:
        zero = np.asarray(np.broadcast_to(zero - shift, scale.shape))
    elif shift:
        zero = np.full(scale.shape, -shift)
    if zero is not None and (zero.min() < -128 or zero.max() > 127):
        return f"zero points outside {torch.iinfo(source.dtype).min} to {torch.iinfo(source.dtype).max}"
    low, high = values.get("quant_min"), values.get("quant_max")
    is_small = low is not None and high is not None and low >= -8 and high <= 7 and numbers.size
    fits = is_small and numbers.min() >= -8 and numbers.max() <= 7
    return Coded(numbers, scale.astype(np.float32), zero, 4 if fits else 8)


def decoded(node: Node, values: Any) -> Array:
    """Return the constant that a node decodes, in float32, even if integers of 8 bits do not hold it.

    Args:
        node: A node that calls one of `DECODES`.
        values: its arguments by name, with tensors instead of nodes.
    """
    source = values["input"]
    return Coded(source.numpy(), *_parameters(op_name(node), values, source.shape)).decoded()


def _parameters(op: str, values: Any, shape: torch.Size) -> tuple[Any, Any]:
    """Return scale and zero point with the rank of the values; None if the blocks do not divide the shape."""
    rank = len(shape)
    if op == DEQUANTIZE:
        ones = (1,) * rank
        return np.full(ones, values["scale"]), np.full(ones, values["zero_point"])
    if op.endswith("per_channel.default"):
        wide = [1] * rank
        wide[values["axis"]] = -1
        return tuple(_array(values[name], wide) for name in ("scales", "zero_points"))
    if op.endswith("per_channel_group.default"):
        return tuple(_array(values[name], [shape[0], -1]) for name in ("scales", "zero_points"))
    blocks = [s // b for s, b in zip(shape, values["block_size"], strict=True)]
    if any(s % b for s, b in zip(shape, values["block_size"], strict=True)):
        return None, None
    return tuple(_array(values[name], blocks) for name in ("scale", "zero_point"))


def _array(value: torch.Tensor | None, shape: list[int]) -> Any:
    return None if value is None else value.detach().cpu().double().reshape(shape).numpy()


@dataclass(frozen=True)
class Coded:
    """A constant in integers (or float16) that lowerings rearrange like an array.

    Args:
        values: int8 (4 bits lie in int8 here), int32 or float16, in logical order.
        scale: float32 of the same rank, with size 1 along axes where it is constant, and the number of blocks along
            an axis of blocks. None for float16.
        zero_point: like scale; None if all are 0.
        bits: The bits that one value takes.
    """

    values: Array
    scale: Array | None
    zero_point: Array | None = None
    bits: int = 8

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes, like the shape of an array."""
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return self.values.ndim

    @property
    def T(self) -> Coded:  # noqa: N802 - as of an array
        """Return the transpose."""
        return self.transpose(*reversed(range(self.ndim)))

    def transpose(self, *axes: int | Sequence[int]) -> Coded:
        """Transpose as `numpy.ndarray.transpose` does."""
        return self._each(lambda a: a.transpose(*axes))

    def __getitem__(self, items: Any) -> Coded:
        """Return a part, or add axes: slices, None and Ellipsis at the end; never a part of the scale axis."""
        listed = list(items) if isinstance(items, tuple) else [items]

        def take(array: Array) -> Array:
            axes = iter(range(array.ndim))
            own = [None if i is None else _parameter_index(i, array.shape[next(axes)]) for i in listed]
            return np.asarray(array[tuple(own)])

        return self._each(take)

    def _each(self, change: Any) -> Coded:
        scale, zero_point = (None if a is None else change(a) for a in (self.scale, self.zero_point))
        return replace(self, values=change(self.values), scale=scale, zero_point=zero_point)

    @property
    def axis(self) -> int | None:
        """Return the axis along which the scale changes; None if there is only one scale."""
        if self.scale is None:
            return None
        wide = [i for i, size in enumerate(self.scale.shape) if size != 1]
        return wide[-1] if wide else None

    @property
    def block(self) -> int:
        """Return the number of values per scale in a matrix with blocks along its rows; else 0."""
        if self.scale is None or self.ndim != 2 or self.scale.shape[0] != self.shape[0]:
            return 0
        count = self.scale.shape[1]
        return self.shape[1] // count if 1 < count < self.shape[1] else 0

    @property
    def is_plain(self) -> bool:
        """Return true if there is one scale for all values, or one for each place on one axis."""
        if self.scale is None:
            return True
        wide = [i for i, size in enumerate(self.scale.shape) if size != 1]
        return not wide or (len(wide) == 1 and self.scale.shape[wide[0]] == self.shape[wide[0]])

    @property
    def scales(self) -> Array:
        """Return all scales, flat."""
        assert self.scale is not None
        return self.scale.reshape(-1)

    @property
    def in_runs(self) -> bool:
        """Return true if scales apply to runs of equally many consecutive values, and zero points are integers."""
        if self.scale is None or self.values.size % self.scale.size:
            return False
        shared = [
            axis for axis, sizes in enumerate(zip(self.scale.shape, self.shape, strict=True)) if len({*sizes}) > 1
        ]
        last = all(own == 1 for own in self.scale.shape[shared[0] + 1 :]) if shared else True
        return last and (self.zero_point is None or not np.any(self.zero_point % 1))

    @property
    def symmetric(self) -> bool:
        """Return true if all zero points are 0."""
        return self.zero_point is None or not self.zero_point.any()

    def decoded(self) -> Array:
        """Return the reals, float32."""
        values = self.values.astype(np.float32)
        if self.scale is None:
            return values
        wide = [self._spread(a) for a in (self.scale, self.zero_point) if a is not None]
        return np.asarray((values - wide[1] if len(wide) == 2 else values) * wide[0], np.float32)

    def _spread(self, parameters: Array) -> Array:
        """Repeat parameters of blocks, to one per value."""
        for axis, (own, size) in enumerate(zip(parameters.shape, self.shape, strict=True)):
            if own not in (1, size):
                parameters = parameters.repeat(size // own, axis)
        return parameters.astype(np.float32)


def _parameter_index(item: Any, size: int) -> Any:
    """Return the index into parameters for an index into values; parameters may be constant along the axis."""
    if size > 1:
        return item
    return slice(None) if isinstance(item, slice) else 0


def find_scaled_product(mul: Node) -> tuple[Node, tuple[Node, ...], Node, Node] | None:
    """Return the source (of any rank), the nodes, the weight (inputs, outputs) in int8, and its scales (outputs)."""
    inner, scales = mul.args[:2]
    if not (isinstance(scales, Node) and is_constant(scales) and isinstance(inner, Node)):
        return None
    if tensor(scales).dim() != 1 or tensor(scales).shape[0] != tensor(mul).shape[-1]:
        return None
    if op_name(inner) == "aten.mm.default":
        copy = inner.args[1]
        if isinstance(copy, Node) and op_name(copy) == "aten._to_copy.default" and _is_int8(copy.args[0]):
            nodes = (copy, inner, mul)
            return (
                None if read_by_others(nodes) else (cast(Node, inner.args[0]), nodes, cast(Node, copy.args[0]), scales)
            )
        return None
    return _integer_product(mul, inner, scales)


def _integer_product(mul: Node, inner: Node, scales: Node) -> tuple[Node, tuple[Node, ...], Node, Node] | None:
    copy = inner.args[0] if op_name(inner) == "aten.mul.Tensor" else None
    product = copy.args[0] if isinstance(copy, Node) and op_name(copy) == "aten._to_copy.default" else None
    if not (isinstance(product, Node) and op_name(product) == "aten._int_mm.default" and _is_int8(product.args[1])):
        return None
    left, views = _skip_views(product.args[0])
    factor, more = _skip_views(inner.args[1])
    if not (
        isinstance(left, Node)
        and op_name(left) == QUANTIZES_BY[-1]
        and isinstance(factor, Node)
        and factor.target is operator.getitem
    ):
        return None
    named = arguments(left)
    choose = cast(Node, factor.args[0])
    others = [n for n in choose.users if n is not factor]
    per_row = math.prod(named["block_size"]) == tensor(cast(Node, left.args[0])).shape[-1]
    if (
        op_name(choose) != CHOOSES[-1]
        or choose.args[0] is not left.args[0]
        or named["scale"] is not factor
        or not per_row
    ):
        return None
    nodes = (choose, factor, *others, left, *views, *more, product, cast(Node, copy), inner, mul)
    return None if read_by_others(nodes) else (cast(Node, left.args[0]), nodes, cast(Node, product.args[1]), scales)


def _skip_views(node: Any) -> tuple[Node, tuple[Node, ...]]:
    views = []
    while isinstance(node, Node) and op_name(node) in _VIEWS:
        views.append(node)
        node = node.args[0]
    return node, tuple(views)


def read_by_others(nodes: Sequence[Node]) -> bool:
    """Return true if a node outside of the pattern reads an inner value of it."""
    return any(user not in nodes for node in nodes[:-1] for user in node.users)


def _is_int8(node: Any) -> bool:
    return isinstance(node, Node) and is_constant(node) and tensor(node).dtype is torch.int8
