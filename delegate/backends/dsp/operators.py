"""The ONNX operators that QNN's provider runs on the HTP: one row per operator, from its own documentation.

https://github.com/onnxruntime/onnxruntime-qnn, docs/execution-providers/QNN-ExecutionProvider.md
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from delegate.backends.onnx.aot import Support

_FLOAT = frozenset({torch.float32, torch.float16})
_NUMBER = _FLOAT | {torch.int32}
_ANY = _NUMBER | {torch.bool, torch.uint8, torch.int8, torch.int64}

OPERATORS: Mapping[str, Support] = {
    **dict.fromkeys(
        (
            "Asin", "Atan", "AveragePool", "BatchNormalization", "Clip", "Conv", "ConvTranspose", "Cos", "Elu", "Erf",
            "Exp", "Floor", "Gelu", "Gemm", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LayerNormalization",
            "LeakyRelu", "Log", "LogSoftmax", "MatMul", "MaxPool", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin",
            "ReduceSum", "Relu", "Resize", "Round", "Sigmoid", "Sin", "Softmax", "Sqrt", "Tanh", "Ceil", "Pad",
        ),
        Support(_FLOAT),
    ),
    **dict.fromkeys(("Abs", "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Max", "Min"), Support(_NUMBER)),
    **dict.fromkeys(
        ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Where"), Support(_NUMBER | {torch.bool})
    ),
    **dict.fromkeys(("And", "Or", "Not"), Support(frozenset({torch.bool}))),
    **dict.fromkeys(
        (
            "Cast", "Concat", "Expand", "Gather", "GatherND", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
            "Unsqueeze",
        ),
        Support(_ANY),
    ),
}  # fmt: skip
