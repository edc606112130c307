"""Regions with long sums in stages, for libraries that add one number after the other.

`delegate.backend.long_sums` has the reason, and the sizes of the stages.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch.fx import Node

from delegate.backend.long_sums import LONG, PIECE, Stage, correction_of_mean, is_long, piece_of, reduce_in_stages
from delegate.backend.qdq import DECODES
from delegate.backend.region import Region
from delegate.edge.build import make_like
from delegate.edge.node import arguments, base_name, op_name, results_used, tensor

aten = torch.ops.aten


def sums_in_stages(region: Region) -> Region:
    """Return a copy of a region in which long sums, and means, norms, variances and normalizations, are in stages.

    Reductions of one dynamic dimension stay, and so do normalizations and variances of dynamic sizes.
    """
    copy = region.copy()
    patterns = {node for pattern in copy.patterns for node in pattern.nodes}
    for node in copy.calls:
        if (rewrite := _REWRITES.get(base_name(node))) and node not in patterns and _is_plain(node):
            rewrite(node)
    return copy


def _is_plain(node: Node) -> bool:
    """Return true for a reduction of floats that it does not cast, and that no integers are decoded to before it."""
    source = node.all_input_nodes[0]
    x, dtype = tensor(source), arguments(node).get("dtype")
    is_decoded = source.op == "call_function" and op_name(source) in DECODES
    return x.is_floating_point() and x.dim() > 0 and dtype in (None, x.dtype) and not is_decoded


@dataclass(frozen=True)
class _Place:
    """Insertion of the nodes that compute what a node does.

    Args:
        node: the node, whose first argument is a tensor.
    """

    node: Node

    @property
    def named(self) -> dict[str, Any]:
        return arguments(self.node)

    @property
    def keepdim(self) -> bool:
        return bool(self.named.get("keepdim"))

    @property
    def operand(self) -> Node:
        return self.node.all_input_nodes[0]

    @property
    def shape(self) -> list[Any]:
        return list(tensor(self.operand).shape)

    @property
    def dims(self) -> list[int]:
        """The dimensions of a reduction."""
        given = self.named.get("dim")
        some = [given] if isinstance(given, int) else given or range(len(self.shape))
        return sorted({dim % len(self.shape) for dim in some})

    def add(self, target: Any, *args: Any) -> Node:
        with self.node.graph.inserting_before(self.node):
            return make_like(self.node, target, args, {})

    def view(self, x: Node, shape: Sequence[Any]) -> Node:
        viewed = self.add(aten.reshape.default, x, list(shape))  # whatever the strides, which mean nothing here
        viewed.target = aten.view.default
        return viewed

    def pad(self, x: Node, dim: int, count: int) -> Node:
        """Append zeros along a dimension."""
        pads = [*(0, 0) * (tensor(x).dim() - 1 - dim), 0, count]
        return self.add(aten.constant_pad_nd.default, x, pads, 0.0) if count else x

    def split(self, x: Node, dim: int) -> Node:
        """Split a dimension into pieces, with zeros at the end if they do not divide it."""
        piece = piece_of(tensor(x).shape[dim])
        x = self.pad(x, dim, -tensor(x).shape[dim] % piece)
        shape = tensor(x).shape
        return self.view(x, [*shape[:dim], shape[dim] // piece, piece, *shape[dim + 1 :]])

    def reduce(self, x: Node, dims: Sequence[int], keepdim: bool, stage: Stage[Node]) -> Node:
        shape_of = lambda y: tensor(y).shape  # noqa: E731
        return reduce_in_stages(x, dims, keepdim, shape_of=shape_of, split=self.split, stage=stage)

    def sum(self, x: Node, dims: Sequence[int], keepdim: bool) -> Node:
        return self.reduce(x, dims, keepdim, partial(self.add, aten.sum.dim_IntList))

    def mean(self, x: Node, dims: Sequence[int], keepdim: bool = True) -> Node:
        mean = self.reduce(x, dims, keepdim, partial(self.add, aten.mean.dim))
        correction = correction_of_mean(tensor(x).shape, dims)
        return mean if correction == 1 else self.add(aten.mul.Tensor, mean, correction)

    def mean_square(self, x: Node, dims: Sequence[int], keepdim: bool = True) -> Node:
        return self.mean(self.add(aten.mul.Tensor, x, x), dims, keepdim)

    def deviation(self, x: Node, dims: Sequence[int]) -> tuple[Node, Node]:
        """Return x - mean(x), less its own mean because the first one is rounded; and mean(x)."""
        mean = self.mean(x, dims)
        difference = self.add(aten.sub.Tensor, x, mean)
        return self.add(aten.sub.Tensor, difference, self.mean(difference, dims)), mean

    def standardize(self, x: Node, dims: Sequence[int], eps: float) -> Node:
        """Return the deviations from the mean over the root of the variance and eps."""
        deviation, _ = self.deviation(x, dims)
        variance = self.add(aten.add.Tensor, self.mean_square(deviation, dims), eps)
        return self.add(aten.mul.Tensor, deviation, self.add(aten.rsqrt.default, variance))

    def affine(self, y: Node, shape: Sequence[Any] | None = None) -> Node:
        """Multiply by the weight and add the bias, in this shape, of a normalization that has them."""
        for target, name in ((aten.mul.Tensor, "weight"), (aten.add.Tensor, "bias")):
            if (operand := self.named[name]) is not None:
                y = self.add(target, y, operand if shape is None else self.view(operand, shape))
        return y

    def running_sum(self, x: Node, dim: int) -> Node:
        """Return running sums of pieces, with the sum of all pieces before each one."""
        size = tensor(x).shape[dim]
        if size <= PIECE:
            return self.add(aten.cumsum.default, x, dim)
        parts = self.running_sum(self.split(x, dim), dim + 1)
        count, piece = tensor(parts).shape[dim : dim + 2]
        totals = self.running_sum(self.add(aten.slice.Tensor, parts, dim + 1, piece - 1, piece), dim)
        pads = [*(0, 0) * (tensor(x).dim() - dim), 1, 0]
        before = self.add(
            aten.constant_pad_nd.default, self.add(aten.slice.Tensor, totals, dim, 0, count - 1), pads, 0.0
        )
        sums = self.add(aten.add.Tensor, parts, before)
        shape = tensor(sums).shape
        whole = self.view(sums, [*shape[:dim], count * piece, *shape[dim + 2 :]])
        return whole if count * piece == size else self.add(aten.slice.Tensor, whole, dim, 0, size)

    def become(self, *results: Node) -> None:
        """Let the node, or those that pick its results, compute what inserted nodes do."""
        picks = [user for user in self.node.users if user.target is operator.getitem]
        for user in picks or [self.node]:
            result = results[cast(int, user.args[1]) if picks else 0]
            user.target, user.args, user.kwargs = result.target, result.args, result.kwargs
        for unused in (*results, *([self.node] if picks else ())):
            if not unused.users:
                unused.graph.erase_node(unused)


def _sum(node: Node) -> None:
    place = _Place(node)
    if is_long(place.shape, place.dims):
        place.become(place.sum(place.operand, place.dims, place.keepdim))


def _mean(node: Node) -> None:
    place = _Place(node)
    if is_long(place.shape, place.dims):
        place.become(place.mean(place.operand, place.dims, place.keepdim))


def _norm(node: Node) -> None:
    place = _Place(node)
    order = place.named["ord"]
    if is_long(place.shape, place.dims) and order not in (0, math.inf, -math.inf):  # the others do not round
        stage = lambda x, dims, keepdim: place.add(node.target, x, order, dims, keepdim)  # noqa: E731
        place.become(place.reduce(place.operand, place.dims, place.keepdim, stage))


def _pool(node: Node) -> None:
    """Replace a pool of everything to one element by a mean."""
    place = _Place(node)
    sizes = place.named["output_size"]
    dims = range(len(place.shape) - len(sizes), len(place.shape))
    if all(isinstance(size, int) and size == 1 for size in sizes) and is_long(place.shape, dims):
        place.become(place.mean(place.operand, dims))


def _variance(node: Node) -> None:
    """Take the mean of squared deviations, for few elements too: a variance of 3 shows that their mean is rounded."""
    place, dims = _Place(node), _Place(node).dims
    sizes = [place.shape[dim] for dim in dims]
    given = place.named.get("unbiased", place.named.get("correction"))
    correction = 1 if given is None else given
    if not all(isinstance(size, int) for size in sizes) or (count := math.prod(sizes)) <= correction:
        return
    deviation, mean = place.deviation(place.operand, dims)
    squares = place.mean_square(deviation, dims, place.keepdim)
    variance = place.add(aten.mul.Tensor, squares, count / (count - correction))
    if base_name(node).startswith("aten.std"):
        variance = place.add(aten.sqrt.default, variance)
    place.become(variance, place.view(mean, tensor(variance).shape))


def _running_sum(node: Node) -> None:
    place = _Place(node)
    (dim,) = place.dims
    size = place.shape[dim]
    if isinstance(size, int) and size > LONG:
        place.become(place.running_sum(place.operand, dim))


def _layer_norm(node: Node) -> None:
    place = _Place(node)
    dims = range(len(place.shape) - len(place.named["normalized_shape"]), len(place.shape))
    if _is_known(place, dims):
        place.become(place.affine(place.standardize(place.operand, dims, place.named["eps"])))


def _group_norm(node: Node) -> None:
    """Normalize groups of channels; an instance norm has one channel in each."""
    place, named = _Place(node), _Place(node).named
    batch, channels, *sizes = place.shape
    if base_name(node) == "aten.instance_norm":
        groups = channels if named["use_input_stats"] else None
    else:
        groups = named["num_groups" if "num_groups" in named else "group"]
    if groups and all(isinstance(size, int) for size in (channels, *sizes)):
        rows = [batch, groups, math.prod((channels // groups, *sizes))]
        if is_long(rows, [2]) and results_used(node) <= {0}:
            y = place.standardize(place.view(place.operand, rows), [2], named["eps"])
            place.become(place.affine(place.view(y, place.shape), [-1, *(1 for _ in sizes)]))


def _batch_norm(node: Node) -> None:
    place = _Place(node)
    dims = [0, *range(2, len(place.shape))]
    if _is_known(place, dims):
        y = place.standardize(place.operand, dims, place.named["eps"])
        place.become(place.affine(y, [-1, *(1 for _ in place.shape[2:])]))


def _is_known(place: _Place, dims: Sequence[int]) -> bool:
    """Return true for a normalization along long dimensions of known sizes, without its further results."""
    return (
        all(isinstance(place.shape[dim], int) for dim in dims)
        and is_long(place.shape, dims, neighbors=0 not in dims)
        and results_used(place.node) <= {0}
    )


_REWRITES: dict[str, Callable[[Node], None]] = {
    "aten.sum": _sum,
    "aten.mean": _mean,
    **{f"aten.{prefix}adaptive_avg_pool{rank}d": _pool for prefix in ("", "_") for rank in (1, 2, 3)},
    "aten.linalg_vector_norm": _norm,
    **dict.fromkeys(("aten.var", "aten.std", "aten.var_mean", "aten.std_mean"), _variance),
    "aten.cumsum": _running_sum,
    **dict.fromkeys(("aten.layer_norm", "aten.native_layer_norm"), _layer_norm),
    **dict.fromkeys(("aten.group_norm", "aten.native_group_norm", "aten.instance_norm"), _group_norm),
    "aten._native_batch_norm_legit": _batch_norm,
}
