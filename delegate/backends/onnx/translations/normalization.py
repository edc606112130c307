"""Normalisations, as inference runs them."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from delegate.backends.lowering import every, first_result_only
from delegate.backends.onnx.translations.own import ints, ops, scalar
from delegate.backends.onnx.translations.row import floating, plain, row
from delegate.edge.node import is_static
from delegate.verdict import YES, Reason, Verdict, no


def _static(node: Node) -> Verdict:
    """Its sizes are known before it runs."""
    return YES if is_static(node) else no(Reason.DYNAMIC_SHAPE, "its sizes depend on the inputs")


def group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-05, cudnn_enabled: bool = True
) -> Any:
    """Groups as instances, then weights per channel: providers have no GroupNormalization."""
    import onnx_ir

    op = ops()
    plain_weight, plain_bias = (
        op.CastLike(op.Constant(value=onnx_ir.tensor([number] * num_groups, dtype=onnx_ir.DataType.FLOAT)), x)
        for number in (1.0, 0.0)
    )
    groups = op.Reshape(x, ints([x.shape[0], num_groups, -1]))
    normal = op.Reshape(op.InstanceNormalization(groups, plain_weight, plain_bias, epsilon=eps), ints(x.shape))
    per_channel = ints([-1, *(1 for _ in x.shape[2:])])
    if weight is not None:
        normal = op.Mul(normal, op.Reshape(weight, per_channel))
    return normal if bias is None else op.Add(normal, op.Reshape(bias, per_channel))


def native_group_norm(
    x: Any, weight: Any, bias: Any, batch: int, channels: int, pixels: int, groups: int, eps: float
) -> Any:
    """The first result of what torch decomposes group_norm to."""
    return (group_norm(x, groups, weight, bias, eps),)


def batch_norm_of_the_batch(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    """Normalised by the statistics of the batch itself."""
    op, axes = ops(), [axis for axis in range(len(x.shape)) if axis != 1]
    centred = op.Sub(x, op.ReduceMean(x, ints(axes)))
    spread = op.Sqrt(op.Add(op.ReduceMean(op.Mul(centred, centred), ints(axes)), scalar(eps, x)))
    normal, per_channel = op.Div(centred, spread), ints([-1, *(1 for _ in x.shape[2:])])
    if weight is not None:
        normal = op.Mul(normal, op.Reshape(weight, per_channel))
    return (normal if bias is None else op.Add(normal, op.Reshape(bias, per_channel)),)


ROWS = (
    row("aten.layer_norm.default", ("LayerNormalization",), floating, keep=True),
    row("aten.native_layer_norm.default", ("LayerNormalization",), every(floating, first_result_only)),
    row(
        "aten.group_norm.default",
        ("Reshape", "InstanceNormalization", "Mul", "Add"),
        every(floating, _static),
        keep=True,
        translate=group_norm,
    ),
    row(
        "aten.native_group_norm.default",
        ("Reshape", "InstanceNormalization", "Mul", "Add"),
        every(floating, _static, first_result_only),
        translate=native_group_norm,
    ),
    row(
        "aten._native_batch_norm_legit.no_stats",
        ("ReduceMean", "Sub", "Mul", "Sqrt", "Add", "Div", "Reshape"),
        every(floating, first_result_only),
        translate=batch_norm_of_the_batch,
    ),
    row(
        "aten.instance_norm.default",
        ("InstanceNormalization",),
        every(floating, plain(use_input_stats=True)),
        keep=True,
    ),
    row(
        "aten._native_batch_norm_legit_no_training.default",
        ("BatchNormalization",),
        every(floating, first_result_only),
    ),
)
