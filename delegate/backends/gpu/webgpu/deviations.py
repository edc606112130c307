"""Where WebGPU shaders of ONNX Runtime differ from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backends.deviations import Deviation, Handling

_TEST = "tests/backends/test_special_values.py"
_row = partial(Deviation, "ONNX Runtime's WebGPU 0.4.0 on SwiftShader", handling=Handling.KEPT, test=_TEST)

DEVIATIONS = (
    _row(
        ("aten.log",), "negative numbers", "returns 0", "returns NaN", points=("ordinary", "tails", "large", "limits")
    ),
    _row(("aten.exp",), "NaN", "returns infinity", "returns NaN", points=("NaN",)),
    _row(
        ("aten.fmod", "aten.remainder", "aten.pow", "aten.hypot", "aten.div.Tensor_mode", "aten.floor_divide"),
        "infinities", "returns NaN", "returns a number or infinity", points=("infinities", "only -infinity", "limits"),
    ),
    _row(
        ("aten.fmod", "aten.remainder"), "quotients over 2^24", "is wrong, which a note reports",
        "returns the exact remainder", points=("large", "limits", "tails", "tiny", "subnormal"),
    ),
    _row(
        ("aten.tanh", "aten.erf", "aten.round", "aten.sin", "aten.sinh", "aten.tan", "aten.remainder", "aten.pow"),
        "-0.0", "returns 0.0", "returns -0.0", points=("signs of zero",), is_noted=False,
    ),
)  # fmt: skip
