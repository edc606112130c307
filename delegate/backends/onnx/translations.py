"""What torch's ONNX exporter makes of an operator: one row per operator that the backends on ONNX Runtime take.

A row names every ONNX operator that the exporter may use for it, so that a provider that runs all of these runs the
operator. `check` says where the exporter's translation does not hold, whatever the provider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.onnx import attention
from delegate.edge.node import arguments, is_constant, results_used, tensor, tensors
from delegate.verdict import YES, Reason, Verdict, no

Check = Callable[[Node], Verdict]


@dataclass(frozen=True, slots=True)
class Translation:
    """A row.

    Args:
        op: e.g. "aten.relu.default".
        onnx: the ONNX operators that it becomes.
        check: whether the translation of this node is right.
        keep: the operator is not core ATen: it is kept whole, since the exporter knows a better one than its parts.
        beside: dtypes that arguments may have beside those of all these ONNX operators, such as a mask's.
        translate: makes the ONNX nodes in place of the exporter's own function.
    """

    op: str
    onnx: tuple[str, ...]
    check: Check
    keep: bool = False
    beside: frozenset[torch.dtype] = frozenset()
    translate: Callable[..., Any] | None = None


def _anything(node: Node) -> Verdict:
    """Any arguments."""
    return YES


def _first_result_only(node: Node) -> Verdict:
    """Only the first result is used.

    Norms and pools give statistics or indices beside it, which providers do not.
    """
    others = results_used(node) - {0}
    if others:
        return no(Reason.ATTRIBUTE, f"result {min(others)} is used, and only the first can be given")
    return YES


def _floating(node: Node) -> Verdict:
    """The result is floating point."""
    if all(t.dtype.is_floating_point for t in tensors(node)):
        return YES
    return no(Reason.DTYPE, "torch divides and rounds integers otherwise than ONNX")


def _same_dtypes(node: Node) -> Verdict:
    """All operands have one dtype.

    The exporter casts what torch promotes by rules of its own; only equal dtypes are sure.
    """
    given = {t.dtype for source in node.all_input_nodes for t in tensors(source)}
    if len(given) <= 1:
        return YES
    names = ", ".join(sorted(str(d).removeprefix("torch.") for d in given))
    return no(Reason.DTYPE, f"the operands have different dtypes: {names}")


def _pool(node: Node) -> Verdict:
    """No divisor of its own, sizes rounded down."""
    given = arguments(node)
    if given.get("divisor_override") is not None:
        return no(Reason.ATTRIBUTE, f"divisor_override={given['divisor_override']}")
    return no(Reason.ATTRIBUTE, "ceil_mode=True") if given.get("ceil_mode") else YES


def _pool_indices(node: Node) -> Verdict:
    """Sizes rounded down, the indices not used."""
    return _pool(node) and _first_result_only(node)


def _global_pool(node: Node) -> Verdict:
    """To one element per channel."""
    sizes = arguments(node)["output_size"]
    return YES if all(s == 1 for s in sizes) else no(Reason.ATTRIBUTE, f"output_size={list(sizes)}, not 1")


def _positive_step(node: Node) -> Verdict:
    """Step 1."""
    return YES if arguments(node)["step"] == 1 else no(Reason.ATTRIBUTE, f"step={arguments(node)['step']}")


def _one_index(node: Node) -> Verdict:
    """One tensor of integer indices."""
    indices = [i for i in arguments(node)["indices"] if i is not None]
    if len(indices) == 1 and not any(t.dtype is torch.bool for t in tensors(indices[0])):
        return YES
    return no(Reason.ATTRIBUTE, "only one tensor of integer indices is translated faithfully")


def _whole_range(node: Node) -> Verdict:
    """The range of values is all of the integer type.

    ONNX's QuantizeLinear saturates at the type's ends and nowhere before.
    """
    given, info = arguments(node), torch.iinfo(tensor(node).dtype)
    low, high = given["quant_min"], given["quant_max"]
    if (low, high) == (info.min, info.max):
        return YES
    return no(Reason.ATTRIBUTE, f"values from {low} to {high}, where {info.dtype} has {info.min} to {info.max}")


def _constant_parameters(node: Node) -> Verdict:
    """Scales and zero points are constants."""
    given = arguments(node)
    moving = next((n for n in (given["scales"], given["zero_points"]) if n is not None and not is_constant(n)), None)
    return YES if moving is None else no(Reason.ATTRIBUTE, f"{moving.name} is computed at run time")


_UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log",
    "neg": "Neg", "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round", "sigmoid": "Sigmoid", "sin": "Sin",
    "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_COMPARE = {"eq": "Equal", "gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual"}
_REDUCE = {
    "sum.dim_IntList": "ReduceSum",
    "mean.dim": "ReduceMean",
    "amax.default": "ReduceMax",
    "amin.default": "ReduceMin",
}

_SHAPE = ("Reshape", "Concat", "Expand", "Squeeze", "Unsqueeze")

_ROWS = (
    *(Translation(f"aten.{name}.default", (onnx,), _floating) for name, onnx in _UNARY.items()),
    *(
        Translation(f"aten.{name}.Tensor", (onnx, "Cast"), _same_dtypes)
        for name, onnx in {"add": "Add", "sub": "Sub", "mul": "Mul"}.items()
    ),
    *(Translation(f"aten.{name}.Scalar", (onnx,), _same_dtypes) for name, onnx in _COMPARE.items()),
    *(Translation(f"aten.{name}.Tensor", (onnx,), _same_dtypes) for name, onnx in _COMPARE.items()),
    *(Translation(f"aten.{name}", (onnx,), _floating) for name, onnx in _REDUCE.items()),
    Translation("aten.add.Scalar", ("Add",), _floating),
    Translation("aten.sub.Scalar", ("Sub",), _floating),
    Translation("aten.mul.Scalar", ("Mul",), _floating),
    Translation("aten.div.Scalar", ("Div",), _floating),
    Translation("aten.div.Tensor", ("Div",), every(_floating, _same_dtypes)),
    Translation("aten.pow.Tensor_Scalar", ("Pow", "Mul", "Sqrt", "Reciprocal"), _floating),
    Translation("aten.pow.Tensor_Tensor", ("Pow",), every(_floating, _same_dtypes)),
    Translation("aten.rsqrt.default", ("Sqrt", "Reciprocal"), _floating),
    Translation("aten.maximum.default", ("Max",), _same_dtypes),
    Translation("aten.minimum.default", ("Min",), _same_dtypes),
    Translation("aten.clamp.default", ("Clip", "Max", "Min"), _floating),
    Translation("aten.hardtanh.default", ("Clip",), _floating),
    Translation("aten.logical_not.default", ("Not",), _anything),
    Translation("aten.logical_and.default", ("And",), _same_dtypes),
    Translation("aten.logical_or.default", ("Or",), _same_dtypes),
    Translation("aten.where.self", ("Where",), _anything),
    # Activations.
    Translation("aten.leaky_relu.default", ("LeakyRelu",), _floating),
    Translation("aten.elu.default", ("Elu",), _floating),
    Translation("aten.gelu.default", ("Gelu",), _floating, keep=True),
    Translation("aten.silu.default", ("Sigmoid", "Mul"), _floating, keep=True),
    Translation("aten.hardswish.default", ("HardSwish",), _floating, keep=True),
    Translation("aten.hardsigmoid.default", ("HardSigmoid",), _floating, keep=True),
    Translation("aten._softmax.default", ("Softmax",), _floating),
    Translation("aten._log_softmax.default", ("LogSoftmax",), _floating),
    # Convolutions, products, pools, norms.
    Translation("aten.convolution.default", ("Conv", "ConvTranspose"), every(_floating, _same_dtypes)),
    Translation(
        "aten.linear.default", ("Gemm", "MatMul", "Transpose", "Add"), every(_floating, _same_dtypes), keep=True
    ),
    Translation("aten.addmm.default", ("Gemm",), every(_floating, _same_dtypes)),
    Translation("aten.mm.default", ("MatMul",), every(_floating, _same_dtypes)),
    Translation("aten.bmm.default", ("MatMul",), every(_floating, _same_dtypes)),
    Translation("aten.matmul.default", ("MatMul",), every(_floating, _same_dtypes), keep=True),
    Translation(
        "aten.scaled_dot_product_attention.default",
        ("MatMul", "Mul", "Softmax", "Transpose", "Add", "Where", "GreaterOrEqual", "Expand", "Reshape"),
        attention.check,
        keep=True,
        beside=frozenset({torch.bool}),
        translate=attention.translate,
    ),
    Translation("aten.avg_pool2d.default", ("AveragePool",), _pool),
    Translation("aten.max_pool2d_with_indices.default", ("MaxPool",), _pool_indices),
    Translation("aten.adaptive_avg_pool2d.default", ("GlobalAveragePool",), _global_pool, keep=True),
    Translation("aten._adaptive_avg_pool2d.default", ("GlobalAveragePool",), _global_pool),
    Translation("aten.layer_norm.default", ("LayerNormalization",), _floating, keep=True),
    Translation("aten.native_layer_norm.default", ("LayerNormalization",), every(_floating, _first_result_only)),
    Translation(
        "aten._native_batch_norm_legit_no_training.default",
        ("BatchNormalization",),
        every(_floating, _first_result_only),
    ),
    # What moves data.
    Translation("aten.view.default", _SHAPE, _anything),
    Translation("aten.expand.default", ("Expand",), _anything),
    Translation("aten.permute.default", ("Transpose",), _anything),
    Translation("aten.squeeze.dims", ("Squeeze",), _anything),
    Translation("aten.unsqueeze.default", ("Unsqueeze",), _anything),
    Translation("aten.cat.default", ("Concat",), _same_dtypes),
    Translation("aten.slice.Tensor", ("Slice",), _positive_step),
    Translation("aten.select.int", ("Gather",), _anything),
    Translation("aten.split_with_sizes.default", ("Split",), _anything),
    Translation("aten.constant_pad_nd.default", ("Pad",), _anything),
    Translation("aten.embedding.default", ("Gather",), _anything),
    Translation("aten.index.Tensor", ("GatherND", "Transpose"), _one_index),
    # Quantization, as PT2E leaves it in a program. Scales and zero points are constants of wider types.
    Translation("quantized_decomposed.quantize_per_tensor.default", ("QuantizeLinear",), _whole_range),
    Translation("quantized_decomposed.dequantize_per_tensor.default", ("DequantizeLinear",), _anything),
    Translation(
        "quantized_decomposed.dequantize_per_channel.default",
        ("DequantizeLinear",),
        _constant_parameters,
        beside=frozenset({torch.int64, torch.float64}),
    ),
)

TRANSLATIONS: Mapping[str, Translation] = {row.op: row for row in _ROWS}
