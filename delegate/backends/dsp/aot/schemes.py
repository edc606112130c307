"""The quantization schemes of the HTP: 8 bits, and activations of 16 bits with weights of 8.

Every operator here has a row in the table (`operators.OPERATORS`). The HTP runs an operator in integers if its operands
and its result are encoded. It computes everything else in float16.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from delegate.backends.quantizable import INT8_WEIGHT, IntegerType, QuantizationScheme, QuantizedOperator
from delegate.edge.node import arguments

_MOST = 5  # dimensions of the HTP's tensors
_CLAMPS = ("aten.relu.default", "aten.hardtanh.default")
UINT8 = IntegerType(torch.uint8, 0, 255)  # hardsigmoid is not taken in int8
UINT16 = IntegerType(torch.uint16, 0, 65535)  # products of two activations are not taken in int16


def _plain(node: Node) -> str:
    """Return the reason to reject a layer: a transposed convolution with groups, dilation or output_padding."""
    if "transpose" not in str(node.target):
        return ""
    args = arguments(node)
    is_unsupported = args["groups"] != 1 or any(d != 1 for d in args["dilation"]) or any(args["output_padding"])
    return "a transposed convolution with groups, dilation or output_padding" if is_unsupported else ""


def _few_dimensions(node: Node) -> str:
    dims = max(
        value.dim() for n in (node, *node.all_input_nodes) if isinstance(value := n.meta.get("val"), torch.Tensor)
    )
    return f"{dims} dimensions, where the HTP takes {_MOST}" if dims > _MOST else ""


def _rows(*names: str, inputs: tuple[int, ...] = (0,), moves: bool = False) -> list[QuantizedOperator]:
    return [QuantizedOperator(f"aten.{n}", inputs, moves=moves, accepts=_few_dimensions) for n in names]


ROWS = (
    QuantizedOperator("aten.convolution.default", weight=1, fuses=_CLAMPS, accepts=_plain),
    QuantizedOperator("aten.linear.default", weight=1, fuses=_CLAMPS),
    QuantizedOperator("aten.add.Tensor", (0, 1), fuses=_CLAMPS),
    *_rows("sub.Tensor", "mul.Tensor", "matmul.default", "bmm.default", inputs=(0, 1)),
    *_rows(
        "_adaptive_avg_pool2d.default", "avg_pool2d.default", "elu.default", "gelu.default", "hardsigmoid.default",
        "hardswish.default", "hardtanh.default", "layer_norm.default", "leaky_relu.default", "mean.dim", "relu.default",
        "sigmoid.default", "silu.default", "softmax.int", "sum.dim_IntList", "tanh.default",
    ),
    *_rows(
        "cat.default", "clone.default", "expand.default", "max_pool2d_with_indices.default", "permute.default",
        "select.int", "slice.Tensor", "split_with_sizes.default", "squeeze.dims", "transpose.int", "unsqueeze.default",
        "view.default", moves=True,
    ),
)  # fmt: skip

SCHEMES = (
    QuantizationScheme("static_int8", ROWS, UINT8, INT8_WEIGHT),
    QuantizationScheme("static_a16w8", ROWS, UINT16, INT8_WEIGHT),
)
