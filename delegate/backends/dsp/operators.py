"""The ONNX operators that QNN's provider runs on the HTP: one row per operator, from its own documentation.

https://github.com/onnxruntime/onnxruntime-qnn, docs/execution-providers/QNN-ExecutionProvider.md
"""

from __future__ import annotations

import torch

from delegate.backends.onnx.aot import Operators

_FLOAT = frozenset({torch.float32, torch.float16})
_NUMBER = _FLOAT | {torch.int32}
_QUANTIZED = frozenset({torch.int8, torch.uint8, torch.int16, torch.uint16})
_ANY = _NUMBER | {torch.bool, torch.uint8, torch.int8, torch.int64}

OPERATORS: Operators = {
    **dict.fromkeys(
        (
            "Atan", "AveragePool", "BatchNormalization", "Clip", "Conv", "ConvTranspose", "Cos", "Elu",
            "Exp", "Floor", "Gelu", "Gemm", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LayerNormalization",
            "LeakyRelu", "Log", "LogSoftmax", "MatMul", "MaxPool", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin",
            "ReduceSum", "Relu", "Resize", "Round", "Sigmoid", "Sin", "Softmax", "Sqrt", "Tanh", "Ceil", "Pad",
        ),
        _FLOAT,
    ),
    **dict.fromkeys(("Abs", "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Max", "Min"), _NUMBER),
    **dict.fromkeys(
        ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Where"), _NUMBER | {torch.bool}
    ),
    **dict.fromkeys(("And", "Or", "Not"), frozenset({torch.bool})),
    **dict.fromkeys(
        (
            "Cast", "Concat", "Expand", "Gather", "GatherND", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
            "Unsqueeze",
        ),
        _ANY,
    ),
    "QuantizeLinear": _QUANTIZED | {torch.float32},
    "DequantizeLinear": _QUANTIZED | {torch.float32, torch.int32},
}  # fmt: skip
