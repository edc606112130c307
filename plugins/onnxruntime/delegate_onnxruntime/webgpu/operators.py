"""The ONNX operators that ONNX Runtime's WebGPU provider runs, with the dtypes that it supports for all their tensors.

Sources: https://github.com/microsoft/onnxruntime, js/web/docs/webgpu-operators.md, and the plugin 0.4 itself, queried
for each operator and dtype.

- The CPU runs Round, Sign, Mod, Or, Xor, IsNaN, IsInf, LogSoftmax, and GridSample of later opsets than 16.
- InstanceNormalization is not in the table: its shader reuses the epsilon of the first one that the process runs.
- int64 is truncated to 32 bits, so it is only supported for indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.fx import Node

from delegate.backend.lowering import every
from delegate.edge.node import arguments, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations import Operators
from delegate_onnxruntime.webgpu.deviations import LARGE_ARGUMENTS, LOST_INDICES

_FLOAT = frozenset({torch.float32, torch.float16})
_NUMBER = _FLOAT | {torch.int32}
_BOOL = frozenset({torch.bool})

OPERATORS: Operators = {
    **dict.fromkeys(
        (
            "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "AveragePool(padded)",
            "BatchNormalization", "Ceil",
            "Conv", "ConvTranspose", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "GatherElements", "Gelu",
            "Gemm", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LayerNormalization",
            "LeakyRelu", "Log", "MatMul", "MaxPool", "MaxPool(padded)",
            "Neg", "PRelu", "Pad(edge)", "Pad(reflect 5-D)", "Pad(reflect)",
            "Pad(wrap)", "Reciprocal", "ReduceL2", "Relu", "Resize", "Sigmoid", "Sin", "Sinh", "Slice", "Softmax",
            "Sqrt", "Tan", "Tanh", "TopK", "TopK(stable)",
        ),
        _FLOAT,
    ),
    **dict.fromkeys(
        (
            "Add", "ArgMax", "ArgMin", "Clip", "Concat", "CumSum", "Div", "Equal", "GatherND", "Greater",
            "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul", "Pad", "Pow", "ReduceMax", "ReduceMean",
            "ReduceMin", "ReduceProd", "ReduceSum", "ScatterElements", "ScatterND", "ScatterND(add)",
            "ScatterND(mul)", "Split", "Squeeze", "Sub", "Tile", "Transpose", "Where",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(("Expand", "Gather", "Unsqueeze"), _NUMBER | _BOOL),
    **dict.fromkeys(("Cast", "Reshape"), _NUMBER | _BOOL | {torch.uint8}),
    **dict.fromkeys(("And", "Not"), _BOOL),
}  # fmt: skip


def _flat_groups(node: Node) -> Verdict:
    """A convolution over 3 dimensions has no groups, and is not transposed."""
    args = arguments(node)
    if tensor(node).dim() < 5 or (args["groups"] == 1 and not args["transposed"]):
        return YES
    return no(Reason.ATTRIBUTE, f"groups={args['groups']}, transposed={args['transposed']} over 3 dimensions")


def _no_single_results(node: Node) -> Verdict:
    """No group of a transposed convolution makes one channel of several: the plugin 0.4 returns wrong numbers."""
    args, shape = arguments(node), tensor(node.all_input_nodes[1]).shape
    if args["transposed"] and args["groups"] > 1 and shape[1] == 1 and shape[0] != args["groups"]:
        return no(Reason.INACCURATE, f"transposed, groups={args['groups']}, and each reduces several channels to one")
    return YES


def _positive_base(node: Node) -> Verdict:
    """The base is positive: WGSL computes powers by logarithms."""
    base = arguments(node)["self"]
    return YES if base > 0 else no(Reason.INACCURATE, f"a power of {base}, which WGSL computes by its logarithm")


def _large_arguments(node: Node) -> Verdict:
    """No node is supported: large negative numbers lose all digits."""
    return LARGE_ARGUMENTS.reject()


def _lost_indices(node: Node) -> Verdict:
    """The numbers are integers."""
    return LOST_INDICES.reject() if tensor(node.all_input_nodes[0]).dtype.is_floating_point else YES


LIMITS: Mapping[str, Callable[[Node], Verdict]] = {
    "aten.asinh.default": _large_arguments,
    "aten.sort.default": _lost_indices,
    "aten.sort.stable": _lost_indices,
    "aten.convolution.default": every(_flat_groups, _no_single_results),
    "aten.pow.Scalar": _positive_base,
}
