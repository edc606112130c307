"""Where the CPU provider of ONNX Runtime differs from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backends.deviations import Deviation, Handling
from delegate.backends.resizing import nearest_deviations

_row = partial(Deviation, "ONNX Runtime 1.31.1")
_SPECIAL = "plugins/onnxruntime/tests/test_special_values.py"
_RELATIVE = "plugins/onnxruntime/tests/test_relative_errors.py"

DEVIATIONS = (
    *nearest_deviations("ONNX Runtime 1.31.1", "plugins/onnxruntime/tests/test_pixels.py"),
    _row(("aten.sigmoid", "aten.silu", "aten.glu"), "inputs below -5",
         "has an absolute error of 1e-7 and returns 0 for float32 from -18 down", "keeps the digits of small results",
         Handling.REWRITTEN, _RELATIVE, "It is computed as 1 / (1 + exp(-x)); Sigmoid stays between quantized values."),
    _row(("aten.silu",), "float32 below -5 between convolutions", "has an absolute error of 1.5e-6",
         "keeps the digits of small results", Handling.KEPT, _RELATIVE,
         "The exact formula takes half as much time again there, and the next convolution adds the results up."),
    _row(("aten.elu", "aten.selu", "aten.celu"), "float32 from -0.004 to 0", "returns exp(x) - 1 without its digits",
         "keeps them", Handling.REWRITTEN, _RELATIVE, "With t = tanh(x / 2), it is computed as 2 t / (1 - t)."),
    _row(("aten.hardswish", "aten.hardsigmoid"), "inputs close to -3",
         "adds the rounded x / 6 to 1 / 2, so digits cancel", "computes x + 3 exactly", Handling.KEPT, _RELATIVE),
    _row(("aten.hypot",), "infinity and NaN", "returns NaN", "returns infinity", Handling.KEPT, _SPECIAL,
         points=("infinities", "only -infinity")),
    _row(("aten.upsample_bicubic2d",), "NaN", "spreads it over other pixels", "spreads it over its neighbours",
         Handling.KEPT, _SPECIAL, points=("NaN",)),
    _row(("aten.where", "aten.masked_fill", "aten.expm1", "aten.log1p", "aten.trunc", "aten.lerp", "aten.nan_to_num",
          "aten.remainder", "aten.floor_divide", "aten.tril", "aten.atan2"),
         "-0.0", "may return 0.0", "keeps the sign", Handling.KEPT, _SPECIAL, points=("signs of zero",)),
)  # fmt: skip
