"""Where WebGPU shaders of ONNX Runtime differ from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backend.deviations import Deviation, Handling

_TEST = "tests/backends/test_special_values.py"
_REFUSED = "plugins/onnxruntime/tests/devices/test_rows.py"
_row = partial(Deviation, "ONNX Runtime's WebGPU 0.4.0 on SwiftShader", handling=Handling.KEPT, test=_TEST)
_ANYWHERE = (
    "example", "zeros", "tiny", "small", "ordinary", "tails", "large", "halves", "equal", "two values", "transposed",
)  # fmt: skip

LARGE_ARGUMENTS = _row(
    ("aten.asinh",), "negative numbers below -100", "adds numbers of nearly equal size, and returns -88",
    "returns the hyperbolic sine's inverse", test=_REFUSED, handling=Handling.REJECTED,
)  # fmt: skip
LOST_INDICES = _row(
    ("aten.sort",), "rows with the lowest number of float32", "returns the index -1 for it", "returns its index",
    test=_REFUSED, handling=Handling.REJECTED,
)  # fmt: skip

DEVIATIONS = (
    LARGE_ARGUMENTS,
    LOST_INDICES,
    _row(
        ("aten.log",), "negative numbers", "returns 0", "returns NaN", points=("ordinary", "tails", "large", "limits")
    ),
    _row(
        ("aten.log", "aten.log2", "aten.log10", "aten.atanh"), "results that are infinite, such as log(0)",
        "returns a finite number, such as -88", "returns infinity", points=("zeros", "infinities"),
    ),
    _row(
        (
            "aten.acos", "aten.acosh", "aten.atanh", "aten.tan", "aten.sin", "aten.cos", "aten.sinh", "aten.cosh",
            "aten.tanh", "aten.erf", "aten.exp", "aten.log", "aten.log2", "aten.log10", "aten.pow", "aten.elu",
            "aten.gelu", "aten.silu", "aten.mish", "aten.softplus", "aten.log_sigmoid", "aten.hardswish",
            "aten.hardsigmoid", "aten._softmax",
        ),
        "most numbers",
        "is as accurate as WGSL requires: sin, cos and acos are up to 2e-4 off, and small results lose all digits",
        "is a few units of the last digit off", points=_ANYWHERE, is_noted=False,
    ),
    _row(
        ("aten.sin", "aten.cos", "aten.tan"), "angles of 128 or more", "is wrong, and may return 1",
        "reduces the angle exactly", points=("large", "limits"),
    ),
    _row(
        ("aten.layer_norm", "aten.native_layer_norm"), "rows whose mean is much larger than their deviation",
        "subtracts the squared mean from the mean of squares: -968 for -3.1 at a mean of 4096 and a deviation of 1",
        "subtracts the mean first", points=("ordinary", "long and offset"),
    ),
    _row(
        ("aten.mm",), "sums of 2^16 products and more", "adds them up one after the other, 5e-4 off for 2^20",
        "adds them up in stages", points=("long",), is_noted=False,
    ),
    _row(
        ("aten.linalg_vector_norm",), "norms below 1e-12", "returns 0 or 2e-13", "returns them",
        points=("zeros", "tiny", "subnormal"), is_noted=False,
    ),
    _row(
        ("aten.topk",), "equal values", "may return other indices", "chooses by its own order",
        points=("zeros", "equal", "two values"),
    ),
    _row(
        ("aten._to_copy",), "floats beyond int32", "returns 2147483520", "returns -2147483648",
        points=("large", "limits"), is_noted=False,
    ),
    _row(
        ("aten.pow",), "infinities", "returns NaN", "returns a number or infinity",
        points=("infinities", "only -infinity", "limits"),
    ),
    _row(
        ("aten.acosh", "aten.add", "aten.gelu", "aten.hardswish"), "numbers close to the largest float",
        "returns infinity or stays finite, since intermediate results do", "rounds once", points=("limits",),
        is_noted=False,
    ),
    _row(
        (), "subnormal numbers", "counts them as 0, or returns the least normal number", "keeps them",
        points=("subnormal",), is_noted=False,
    ),
    _row(
        (), "-0.0", "may return 0.0, also for the larger or smaller of two zeros", "returns -0.0",
        points=("signs of zero",), is_noted=False,
    ),
)  # fmt: skip
