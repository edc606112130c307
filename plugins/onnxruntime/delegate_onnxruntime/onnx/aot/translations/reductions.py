"""Reductions and sorting: sums, means, extremes, variances, the places of extremes, the largest elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from delegate.backend.lowering import anything, every, with_dimensions
from delegate.edge.node import arguments, is_static, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.logic import truth
from delegate_onnxruntime.onnx.aot.translations.row import (
    BOOL,
    INDICES,
    axis_of,
    floating,
    floating_inputs,
    ints,
    numbers,
    ops,
    row,
    scalar,
)


def _static_input(node: Node) -> Verdict:
    """The number of averaged elements is known before it runs, and is more than the correction."""
    source = node.all_input_nodes[0]
    if not is_static(source):
        return no(Reason.DYNAMIC_SHAPE, f"{source.name} has sizes that depend on the inputs")
    args, shape = arguments(node), tensor(source).shape
    if not shape:
        return with_dimensions(node)
    count = math.prod(shape[d] for d in args["dim"] or range(len(shape)))
    return YES if count > _correction(args) else no(Reason.ATTRIBUTE, f"the variance of {count} elements")


def _correction(args: dict[str, Any]) -> float:
    if "unbiased" in args:
        return float(args["unbiased"])
    return 1.0 if args["correction"] is None else float(args["correction"])


def variance(
    x: Any,
    dim: Sequence[int] | None = None,
    unbiased: bool = True,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    """Return the mean of the squared differences from the mean, times n / (n - correction)."""
    op, axes = ops(), list(dim or range(len(x.shape)))
    count = math.prod(x.shape[a] for a in axes)
    less = float(unbiased) if correction is None else correction
    centred = op.Sub(x, op.ReduceMean(x, ints(axes)))
    mean = op.ReduceMean(op.Mul(centred, centred), ints(axes), keepdims=int(keepdim))
    return op.Mul(mean, scalar(count / (count - less), x))


def variance_and_mean(
    x: Any, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """Return the variance and the mean."""
    axes = list(dim or range(len(x.shape)))
    mean = ops().ReduceMean(x, ints(axes), keepdims=int(keepdim))
    return variance(x, axes, correction=correction, keepdim=keepdim), mean


def largest(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """Return the largest elements. For all dimensions, the exporter's own translation fails."""
    return ops().ReduceMax(x, ints(dim or range(len(x.shape))), keepdims=int(keepdim))


def smallest(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """Return the smallest elements. For all dimensions, the exporter's own translation fails."""
    return ops().ReduceMin(x, ints(dim or range(len(x.shape))), keepdims=int(keepdim))


def any_true(x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """Return true if the largest of the booleans, as numbers, is 1."""
    import onnx_ir

    op, axes = ops(), range(len(x.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    numbers = op.Cast(truth(x), to=onnx_ir.DataType.FLOAT)
    reduced = op.ReduceMax(numbers, ints(list(axes)), keepdims=int(keepdim))
    return op.Greater(reduced, op.Constant(value_float=0.5))


def extreme(x: Any, reduce: str, find: str, dim: int, keepdim: bool) -> Any:
    """Return the largest or smallest element along a dimension, and its first place."""
    op = ops()
    index = getattr(op, find)(x, axis=axis_of(dim, x), keepdims=int(keepdim))
    return getattr(op, reduce)(x, ints([dim]), keepdims=int(keepdim)), index


def largest_of(x: Any, dim: int, keepdim: bool = False) -> Any:
    """Return the largest element along a dimension, and its place."""
    return extreme(x, "ReduceMax", "ArgMax", dim, keepdim)


def smallest_of(x: Any, dim: int, keepdim: bool = False) -> Any:
    """Return the smallest element along a dimension, and its place."""
    return extreme(x, "ReduceMin", "ArgMin", dim, keepdim)


def place_of_largest(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the first place of the largest element; without a dimension, in the flattened tensor."""
    return _place("ArgMax", x, dim, keepdim)


def place_of_smallest(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the first place of the smallest element; without a dimension, in the flattened tensor."""
    return _place("ArgMin", x, dim, keepdim)


def _place(find: str, x: Any, dim: int | None, keepdim: bool) -> Any:
    op, rank = ops(), len(x.shape)
    if dim is not None:
        return getattr(op, find)(x, axis=axis_of(dim, x), keepdims=int(keepdim))
    index = getattr(op, find)(op.Reshape(x, ints([-1])), axis=0, keepdims=0)
    return op.Reshape(index, ints([1] * rank)) if keepdim else index


def norm(x: Any, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Any:
    """Return the root of the sum of squares, the sum of absolute values, or the largest or smallest of these."""
    op = ops()
    axes, keep = ints(dim or range(len(x.shape))), {"keepdims": int(keepdim)}
    if ord == 2:
        return op.ReduceL2(x, axes, **keep)
    reduce = op.ReduceSum if ord == 1 else op.ReduceMax if ord > 0 else op.ReduceMin
    return reduce(op.Abs(x), axes, **keep)


def _known_order(node: Node) -> Verdict:
    """The order is 1, 2 or an infinity."""
    order = arguments(node)["ord"]
    return YES if order in (1, 2, math.inf, -math.inf) else no(Reason.ATTRIBUTE, f"a norm of order {order}")


def running_sum(x: Any, dim: int, *, dtype: int | None = None) -> Any:
    """Return the running sum along a dimension."""
    op = ops()
    return op.CumSum(x, op.Constant(value_int=axis_of(dim, x)))


def _some_dimension(node: Node) -> Verdict:
    """At least one dimension."""
    source = node.all_input_nodes[0]
    return YES if tensor(source).dim() else no(Reason.RANK, f"{source.name} has no dimensions")


_REDUCE = {
    "sum.dim_IntList": "ReduceSum",
    "mean.dim": "ReduceMean",
    "mean.default": "ReduceMean",
    "prod.default": "ReduceProd",
    "prod.dim_int": "ReduceProd",
}
_ONE = every(numbers, _some_dimension)
_VARIANCE = ("ReduceMean", "Sub", "Mul")
_SUMMED = every(floating, floating_inputs)  # a sum of booleans or integers is one of int64


def _known_size(node: Node) -> Verdict:
    """The number of sorted elements is known before it runs."""
    source = node.all_input_nodes[0]
    shape = tensor(source).shape
    if len(shape) and isinstance(shape[arguments(node)["dim"]], int):
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"the size of {source.name} along dim is not known before it runs")


def _known_count(node: Node) -> Verdict:
    """k is a number, of at least one dimension."""
    k = arguments(node)["k"]
    if isinstance(k, int) and tensor(node.all_input_nodes[0]).dim():
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"k={k}")


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Return the k largest or smallest elements in order; if `sorted` is False, torch permits any order."""
    return ops().TopK(x, ints([k]), axis=axis_of(dim, x), largest=int(largest), sorted=1)


def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """Sort all elements, the smallest first unless `descending`."""
    return topk(x, x.shape[axis_of(dim, x)], dim, descending)


def stable_sort(x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Sort by a provider whose TopK is stable: equal elements stay in order."""
    return sort(x, dim, descending)


_FLOATS = every(floating_inputs, _known_size)


ROWS = (
    *(row(f"aten.{name}", (onnx,), _SUMMED) for name, onnx in _REDUCE.items()),
    *(
        row(f"aten.{name}.default", (onnx,), numbers, translate=reduce)
        for names, onnx, reduce in ((("amax", "max"), "ReduceMax", largest), (("amin", "min"), "ReduceMin", smallest))
        for name in names
    ),
    *(
        row(f"aten.var.{overload}", _VARIANCE, every(floating, _static_input), translate=variance)
        for overload in ("correction", "dim")
    ),
    row(
        "aten.var_mean.correction", _VARIANCE, every(floating, _static_input), translate=variance_and_mean
    ),
    row("aten.max.dim", ("ReduceMax", "ArgMax"), _ONE, also=INDICES, translate=largest_of),
    row("aten.min.dim", ("ReduceMin", "ArgMin"), _ONE, also=INDICES, translate=smallest_of),
    row(
        "aten.argmax.default", ("ArgMax",), _ONE, also=INDICES, translate=place_of_largest, between=("Reshape",)
    ),
    row(
        "aten.argmin.default", ("ArgMin",), _ONE, also=INDICES, translate=place_of_smallest, between=("Reshape",)
    ),
    *(
        row(
            f"aten.any.{overload}", ("Cast", "Equal"), anything, also=BOOL, translate=any_true,
            between=("ReduceMax", "Greater", "Not"),
        )
        for overload in ("default", "dim", "dims")
    ),
    row(
        "aten.linalg_vector_norm.default", ("ReduceL2", "Abs", "ReduceSum", "ReduceMax", "ReduceMin"),
        every(_SUMMED, _some_dimension, _known_order), translate=norm,
    ),
    row("aten.cumsum.default", ("CumSum",), every(_SUMMED, _some_dimension), translate=running_sum),
    row("aten.topk.default", ("TopK",), every(floating_inputs, _known_count), also=INDICES, translate=topk),
    row("aten.sort.default", ("TopK",), _FLOATS, also=INDICES, translate=sort),
    row("aten.sort.stable", ("TopK(stable)",), _FLOATS, also=INDICES, translate=stable_sort),
)  # fmt: skip
