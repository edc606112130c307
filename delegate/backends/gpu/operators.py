"""The ONNX operators that ONNX Runtime's WebGPU provider runs: one row per operator.

https://github.com/microsoft/onnxruntime, js/web/docs/webgpu-operators.md, and what the plugin 0.4 was asked beyond it:
Round, Or and LogSoftmax, for one, it leaves to the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from delegate.backends.onnx.aot import Support

_FLOAT = frozenset({torch.float32, torch.float16})
_NUMBER = _FLOAT | {torch.int32}
_BOOL = frozenset({torch.bool})

OPERATORS: Mapping[str, Support] = {
    **dict.fromkeys(
        (
            "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "BatchNormalization", "Ceil", "Clip",
            "Conv", "ConvTranspose", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "Gemm", "GlobalAveragePool",
            "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "Log", "MatMul", "MaxPool", "Pad",
            "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Resize", "Sigmoid", "Sin",
            "Sinh", "Softmax", "Sqrt", "Tan", "Tanh",
        ),
        Support(_FLOAT),
    ),
    **dict.fromkeys(("Abs", "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Max", "Min"), Support(_NUMBER)),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Where"), Support(_NUMBER | _BOOL)),
    **dict.fromkeys(("And", "Not"), Support(_BOOL)),
    **dict.fromkeys(
        (
            "Cast", "Concat", "Expand", "Gather", "GatherND", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
            "Unsqueeze",
        ),
        Support(_NUMBER | _BOOL | {torch.int64}),
    ),
}  # fmt: skip
