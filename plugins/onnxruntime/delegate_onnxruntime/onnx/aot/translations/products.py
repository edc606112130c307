"""Products: of matrices, convolutions over one to three dimensions, and attention.

The exporter's own translation of attention removes the NaN of rows that are masked completely by IsNaN, which few
providers have. Here no NaN occurs: masked weights are also set to 0 after the softmax, as in torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from delegate.backend.lowering import every, of_matrices
from delegate.edge.node import arguments, tensors
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.row import BOOL, floating, row, same_dtypes

_PRODUCT = every(floating, same_dtypes)


def _pads_within_a_step(node: Node) -> Verdict:
    """In a transposed convolution, output_padding is less than stride."""
    args = arguments(node)
    if not args["transposed"] or all(p < s for p, s in zip(args["output_padding"], args["stride"], strict=False)):
        return YES
    what = f"a transposed convolution with output_padding={args['output_padding']}, stride={args['stride']}"
    return no(Reason.ATTRIBUTE, f"{what}, which ONNX Runtime does not support")


def _attention_check(node: Node) -> Verdict:
    """The operands are floating point, without dropout.

    With enable_gqa, the number of key and value heads divides the number of query heads.
    """
    attributes = arguments(node)
    if attributes.get("dropout_p"):
        return no(Reason.ATTRIBUTE, f"dropout_p={attributes['dropout_p']}")
    if attributes.get("enable_gqa") and node.meta["val"].dim() != 4:
        return no(Reason.RANK, "grouped heads are supported only with 4 dimensions")
    if all(t.dtype.is_floating_point for t in tensors(node)):
        return YES
    return no(Reason.DTYPE, "attention is supported only in floating point")


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return `aten.scaled_dot_product_attention.default` as ONNX nodes; arguments and result are values of onnx_ir."""
    from onnxscript import opset18 as op

    rank, length = len(key.shape), key.shape[-2]
    if enable_gqa:
        key, value = (_repeat_heads(x, query.shape[1] // x.shape[1], op) for x in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scaled = op.Mul(query, _scalar(factor, query, op))
    scores = op.MatMul(scaled, op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2]))
    lowest = _scalar(torch.finfo(_TORCH[query.dtype.name]).min, query, op)
    allowed = None
    if is_causal:
        allowed = _causal(query.shape[-2], length, query, key, op)
    elif attn_mask is not None and attn_mask.dtype.name == "BOOL":
        allowed = attn_mask
    elif attn_mask is not None:
        allowed = op.GreaterOrEqual(attn_mask, lowest)  # -inf is below
        scores = op.Add(scores, attn_mask)
    if allowed is None:
        return op.MatMul(op.Softmax(scores, axis=-1), value)
    weights = op.Softmax(op.Where(allowed, scores, lowest), axis=-1)
    return op.MatMul(op.Where(allowed, weights, _scalar(0.0, query, op)), value)


_TORCH = {"FLOAT": torch.float32, "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16}


def _scalar(number: float, like: Any, op: Any) -> Any:
    import onnx_ir

    return op.Constant(value=onnx_ir.tensor(number, dtype=like.dtype))


def _repeat_heads(heads: Any, times: int, op: Any) -> Any:
    """Repeat each head `times` times in a row: (B, H, S, E) to (B, H * times, S, E)."""
    rows = op.Expand(op.Unsqueeze(heads, op.Constant(value_ints=[2])), op.Constant(value_ints=[1, 1, times, 1, 1]))
    return op.Reshape(rows, op.Constant(value_ints=[0, heads.shape[1] * times, -1, heads.shape[3]]))


def _causal(rows: Any, columns: Any, query: Any, key: Any, op: Any) -> Any:
    """Return the causal mask: each row attends to its own column and to those before it."""
    import onnx_ir

    if isinstance(rows, int) and isinstance(columns, int):
        return op.Constant(value=onnx_ir.tensor(torch.ones(rows, columns).tril().bool().numpy()))
    ends = (op.Gather(op.Shape(x), op.Constant(value_int=-2)) for x in (query, key))
    first, second = (op.Cast(op.Range(0, end, 1), to=onnx_ir.DataType.INT32) for end in ends)
    return op.GreaterOrEqual(op.Unsqueeze(first, [1]), second)


ROWS = (
    row("aten.convolution.default", ("Conv", "ConvTranspose"), every(floating, same_dtypes, _pads_within_a_step)),
    row("aten.linear.default", ("Gemm", "MatMul", "Transpose", "Add"), _PRODUCT, keep=True),
    row("aten.addmm.default", ("Gemm",), _PRODUCT),
    row("aten.mm.default", ("MatMul",), _PRODUCT),
    row("aten.bmm.default", ("MatMul",), _PRODUCT),
    row("aten.matmul.default", ("MatMul",), every(_PRODUCT, of_matrices), keep=True),
    row(
        "aten.scaled_dot_product_attention.default",
        ("MatMul", "Mul", "Softmax", "Transpose", "Add", "Where", "GreaterOrEqual", "Expand", "Reshape"),
        _attention_check,
        keep=True,
        also=BOOL,
        translate=attention,
    ),
)
