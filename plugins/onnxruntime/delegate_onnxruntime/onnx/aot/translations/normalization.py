"""Normalisations, as inference runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from delegate.backend.lowering import every, first_result_only
from delegate.edge.node import arguments, is_static
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.row import constant, floating, ints, ops, plain, row, scalar, set_dtype


def _static(node: Node) -> Verdict:
    """Its sizes are known before it runs."""
    return YES if is_static(node) else no(Reason.DYNAMIC_SHAPE, "its sizes depend on the inputs")


def _known_shape(node: Node) -> Verdict:
    """The sizes of the normalized dimensions are known before it runs."""
    shape = arguments(node)["normalized_shape"]
    if all(isinstance(size, int) for size in shape):
        return YES
    return no(Reason.DYNAMIC_SHAPE, "the sizes of the normalized dimensions depend on the inputs")


def layer_norm(
    x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-05, cudnn_enable: bool = True
) -> Any:
    """Return a layer norm; without a weight, by ones of the shape. The exporter's have size 1 if sizes are symbols."""
    weight = _fill(1.0, shape, x) if weight is None else weight
    return ops().LayerNormalization(x, weight, bias, axis=-len(shape), epsilon=eps)[0]


def native_layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """Return the first result of the operator that torch decomposes layer_norm to."""
    return (layer_norm(x, shape, weight, bias, eps),)


def _fill(number: float, shape: Sequence[int], like: Any) -> Any:
    """Return a constant of equal numbers, in the dtype of `like`."""
    return ops().CastLike(constant(torch.full(tuple(shape), number)), like)


def group_norm(x: Any, weight: Any, bias: Any, batch: int, channels: int, pixels: int, count: int, eps: float) -> Any:
    """Return a group norm: groups as instances, then weights per channel, as providers have no GroupNormalization."""
    op = ops()
    plain_weight, plain_bias = (_fill(number, [count], x) for number in (1.0, 0.0))
    groups = op.Reshape(x, ints([batch, count, -1]))
    normal = op.Reshape(op.InstanceNormalization(groups, plain_weight, plain_bias, epsilon=eps), ints(x.shape))
    return (_apply_weight(normal, weight, bias, len(x.shape)),)


def _normal(x: Any, axes: Sequence[int], eps: float) -> Any:
    """Return the deviations from the mean divided by their root mean square."""
    op = ops()
    centred = op.Sub(x, op.ReduceMean(x, ints(axes)))
    return op.Div(centred, op.Sqrt(op.Add(op.ReduceMean(op.Mul(centred, centred), ints(axes)), scalar(eps, x))))


def _apply_weight(normal: Any, weight: Any, bias: Any, rank: int) -> Any:
    op, per_channel = ops(), ints([-1, *[1] * (rank - 2)])
    if weight is not None:
        normal = op.Mul(normal, op.Reshape(weight, per_channel))
    return normal if bias is None else op.Add(normal, op.Reshape(bias, per_channel))


def group_norm_by_means(
    x: Any, weight: Any, bias: Any, batch: int, channels: int, pixels: int, count: int, eps: float
) -> Any:
    """Return a group norm by means, for providers without InstanceNormalization."""
    op = ops()
    groups = set_dtype(op.Reshape(x, ints([batch, count, -1])), x)
    return (_apply_weight(op.Reshape(_normal(groups, [2], eps), ints(x.shape)), weight, bias, len(x.shape)),)


def batch_norm_of_the_batch(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    """Return a batch norm with the statistics of the batch itself."""
    axes = [axis for axis in range(len(x.shape)) if axis != 1]
    return (_apply_weight(_normal(x, axes, eps), weight, bias, len(x.shape)),)


_BY_MEANS = ("ReduceMean", "Sub", "Mul", "Sqrt", "Add", "Div", "Reshape")

_ONE_RESULT = every(floating, first_result_only)
_GROUPED = every(floating, _static, first_result_only)

ROWS = (
    row(  # preserved, because only a whole layer norm between quantized values is one in integers
        "aten.layer_norm.default", ("LayerNormalization",), every(floating, _known_shape), keep=True,
        translate=layer_norm,
    ),
    row(
        "aten.native_layer_norm.default", ("LayerNormalization",), every(_ONE_RESULT, _known_shape),
        translate=native_layer_norm,
    ),
    row(
        "aten.native_group_norm.default", ("Reshape", "InstanceNormalization", "Mul", "Add"), _GROUPED,
        translate=group_norm,
    ),
    row("aten.native_group_norm.default", _BY_MEANS, _GROUPED, translate=group_norm_by_means),
    row("aten._native_batch_norm_legit.no_stats", _BY_MEANS, _ONE_RESULT, translate=batch_norm_of_the_batch),
    row("aten._native_batch_norm_legit_no_training.default", ("BatchNormalization",), _ONE_RESULT),
    row(
        "aten.instance_norm.default", ("InstanceNormalization",), every(floating, plain(use_input_stats=True)),
        keep=True,
    ),
)  # fmt: skip
