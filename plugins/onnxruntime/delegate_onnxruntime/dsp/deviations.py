"""Where Qualcomm's HTP differs from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backend.deviations import Deviation, Handling

_row = partial(Deviation, "QNN in onnxruntime-qnn 2.7.0", handling=Handling.KEPT)
_INFINITY = "plugins/onnxruntime/tests/devices/test_infinity.py"
_QUANTIZED = "plugins/onnxruntime/tests/devices/test_quantized.py"
_HALF = "plugins/onnxruntime/tests/devices/test_half_precision.py"
_ANYWHERE = (
    "example", "zeros", "subnormal", "tiny", "small", "ordinary", "tails", "halves", "equal", "two values",
    "transposed",
)  # fmt: skip

DEVIATIONS = (
    _row(
        (), "NaN, infinities and values beyond float16, such as 1e6", "returns finite numbers of 65,504 or more",
        "keeps them", test=_INFINITY, points=("NaN", "infinities", "only -infinity", "limits", "large"),
    ),
    _row(
        (), "numbers below 6e-5, also within a composed operator", "loses their digits, and returns 0 below 3e-8",
        "keeps them", test=_HALF, points=("tiny",),
    ),
    _row(
        ("aten.eq", "aten.ne", "aten.lt", "aten.le", "aten.gt", "aten.ge"), "infinities",
        "compares them as numbers of 65,504 or more, or as NaN", "compares infinities", test=_INFINITY,
    ),
    _row(
        ("aten._to_copy",), "integers beyond float16, such as 1e7", "returns 131,008 or less", "returns the number",
        test=_HALF, points=("integers",), is_noted=False,
    ),
    _row(
        ("aten.linalg_vector_norm", "aten.var", "aten.std", "aten.var_mean", "aten.rms_norm",
         "aten._native_batch_norm_legit"),
        "norms and deviations of 256 or more, or below 0.008", "overflows, or returns 0, since squares leave float16",
        "returns the result", test=_HALF,
        points=("tails", "large", "limits", "halves", "small", "long", "long and equal"),
    ),
    _row(
        ("aten.atan", "aten.sin", "aten.cos", "aten.erf", "aten.sigmoid", "aten.elu", "aten.selu", "aten.gelu",
         "aten.silu", "aten.mish", "aten.softplus",
         "aten.log_sigmoid", "aten.glu", "aten.hardswish", "aten.hardsigmoid"),
        "results close to 0", "has an absolute error of 2e-3, and mish of 2e-2", "keeps the digits of small results",
        test=_HALF, points=_ANYWHERE, is_noted=False,
    ),
    _row(
        ("aten.sin", "aten.cos"), "angles over 3", "has an absolute error of up to 1e-3 of the angle",
        "reduces every angle exactly", test=_HALF, points=("tails", "halves"),
    ),
    _row(
        ("aten.div",), "divisors below 2e-5", "overflows, since the reciprocal exceeds float16",
        "returns the quotient", test=_HALF, points=("small",), is_noted=False,
    ),
    _row(
        ("aten.pow.Scalar", "aten._softmax", "aten.scaled_dot_product_attention"), "exponents of 8 or more",
        "rounds them to float16, which is 0.4% of the result at 8, and 6% at 100", "rounds them to float32", test=_HALF,
        points=(*_ANYWHERE, "long and offset"), is_noted=False,
    ),
    _row(
        ("aten.cumsum",), "running sums", "rounds each of them to float16, and is 0.5% off after 256 numbers",
        "adds up in float32", test=_HALF, points=("long",),
    ),
    _row(
        ("aten.layer_norm", "aten.group_norm", "aten.instance_norm"), "means of a thousand times the deviation",
        "subtracts a rounded mean", "subtracts the mean", test=_HALF, points=("long and offset",), is_noted=False,
    ),
    _row(
        ("quantized_decomposed.dequantize_per_channel",), "results close to the middle of two steps of 16 bits",
        "may return the next step", "returns the nearest one", test=_QUANTIZED,
        points=("values",), is_noted=False,
    ),
)  # fmt: skip
