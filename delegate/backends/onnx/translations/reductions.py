"""Reductions: sums, means, extremes, variances, and where the extremes are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from delegate.backends.lowering import every, first_result_only
from delegate.backends.onnx.translations.own import ints, ops, scalar
from delegate.backends.onnx.translations.row import INDICES, Translation, floating, floating_inputs, truths
from delegate.edge.node import arguments, is_static, tensor
from delegate.verdict import YES, Reason, Verdict, no


def _static_input(node: Node) -> Verdict:
    """How many elements are averaged is known before it runs, and is more than the correction."""
    source = node.all_input_nodes[0]
    if not is_static(source):
        return no(Reason.DYNAMIC_SHAPE, f"{source.name} has sizes that depend on the inputs")
    given, shape = arguments(node), tensor(source).shape
    count = math.prod(shape[d] for d in given["dim"] or range(len(shape)))
    return YES if count > _correction(given) else no(Reason.ATTRIBUTE, f"the variance of {count} elements")


def _correction(given: dict[str, Any]) -> float:
    if "unbiased" in given:
        return float(given["unbiased"])
    return 1.0 if given["correction"] is None else float(given["correction"])


def _one_extreme(node: Node) -> Verdict:
    """A dimension is named."""
    return YES if arguments(node)["dim"] is not None else no(Reason.ATTRIBUTE, "of all elements at once")


def variance(
    x: Any,
    dim: Sequence[int] | None = None,
    unbiased: bool = True,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    """The mean of the squared differences from the mean, times n / (n - correction)."""
    op, axes = ops(), list(dim or range(len(x.shape)))
    count = math.prod(x.shape[a] for a in axes)
    less = float(unbiased) if correction is None else correction
    centred = op.Sub(x, op.ReduceMean(x, ints(axes)))
    mean = op.ReduceMean(op.Mul(centred, centred), ints(axes), keepdims=int(keepdim))
    return op.Mul(mean, scalar(count / (count - less), x))


def largest(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """The exporter fails where all dimensions are meant."""
    return ops().ReduceMax(x, ints(dim or range(len(x.shape))), keepdims=int(keepdim))


def smallest(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """As `largest`."""
    return ops().ReduceMin(x, ints(dim or range(len(x.shape))), keepdims=int(keepdim))


def any_true(x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """Whether the largest of the truth values, as numbers, is 1."""
    import onnx_ir

    op, axes = ops(), range(len(x.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    numbers = op.Cast(x, to=onnx_ir.DataType.FLOAT)
    reduced = op.ReduceMax(numbers, ints(list(axes)), keepdims=int(keepdim))
    return op.Greater(reduced, op.Constant(value_float=0.5))


_REDUCE = {
    "sum.dim_IntList": "ReduceSum",
    "mean.dim": "ReduceMean",
    "mean.default": "ReduceMean",
    "max.default": "ReduceMax",
    "min.default": "ReduceMin",
    "prod.default": "ReduceProd",
    "prod.dim_int": "ReduceProd",
}
_VARIANCE = ("ReduceMean", "Sub", "Mul")
_SUMMED = every(floating, floating_inputs)  # a sum of truth values or integers is one of int64

ROWS = (
    *(Translation(f"aten.{name}", (onnx,), _SUMMED) for name, onnx in _REDUCE.items()),
    Translation("aten.amax.default", ("ReduceMax",), floating, translate=largest),
    Translation("aten.amin.default", ("ReduceMin",), floating, translate=smallest),
    *(
        Translation(f"aten.var.{overload}", _VARIANCE, every(floating, _static_input), translate=variance)
        for overload in ("correction", "dim")
    ),
    Translation("aten.max.dim", ("ReduceMax",), every(first_result_only, floating_inputs)),
    Translation("aten.min.dim", ("ReduceMin",), every(first_result_only, floating_inputs)),
    Translation("aten.argmax.default", ("ArgMax",), every(_one_extreme, floating_inputs), beside=INDICES),
    Translation("aten.argmin.default", ("ArgMin",), every(_one_extreme, floating_inputs), beside=INDICES),
    *(
        Translation(f"aten.any.{overload}", ("Cast",), truths, between=("ReduceMax", "Greater"), translate=any_true)
        for overload in ("default", "dim", "dims")
    ),
)
