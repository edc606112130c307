"""The ONNX operators that ONNX Runtime's WebGPU provider runs: one row per operator.

https://github.com/microsoft/onnxruntime, js/web/docs/webgpu-operators.md, and what the plugin 0.4 was asked beyond it:
Round, Or and LogSoftmax, for one, it leaves to the CPU.
"""

from __future__ import annotations

import torch

from delegate.backends.onnx.aot import Operators

_FLOAT = frozenset({torch.float32, torch.float16})
_NUMBER = _FLOAT | {torch.int32}
_BOOL = frozenset({torch.bool})

OPERATORS: Operators = {
    **dict.fromkeys(
        (
            "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "BatchNormalization", "Ceil", "Clip",
            "Conv", "ConvTranspose", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "Gemm", "GlobalAveragePool",
            "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "Log", "MatMul", "MaxPool", "Pad",
            "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Resize", "Sigmoid", "Sin",
            "Sinh", "Softmax", "Sqrt", "Tan", "Tanh",
        ),
        _FLOAT,
    ),
    **dict.fromkeys(("Abs", "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Max", "Min"), _NUMBER),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Where"), _NUMBER | _BOOL),
    **dict.fromkeys(("And", "Not"), _BOOL),
    **dict.fromkeys(
        (
            "Cast", "Concat", "Expand", "Gather", "GatherND", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
            "Unsqueeze",
        ),
        _NUMBER | _BOOL | {torch.int64},
    ),
}  # fmt: skip
