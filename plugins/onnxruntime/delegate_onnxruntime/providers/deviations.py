"""Where the CPU provider of ONNX Runtime differs from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backend.deviations import Deviation, Handling
from delegate.backend.resizing import nearest_deviations

_row = partial(Deviation, "ONNX Runtime 1.31.1")
_SPECIAL = "plugins/onnxruntime/tests/test_special_values.py"
_RELATIVE = "plugins/onnxruntime/tests/test_relative_errors.py"
_KEPT = "plugins/onnxruntime/tests/test_kept_differences.py"
_INFINITE = ("NaN", "infinities", "only -infinity")  # groups of points

DEVIATIONS = (
    *nearest_deviations("ONNX Runtime 1.31.1", "plugins/onnxruntime/tests/test_shared.py"),
    _row(("aten.sigmoid", "aten.silu", "aten.glu"), "inputs below -5",
         "has an absolute error of 1e-7 and returns 0 for float32 from -18 down", "keeps the digits of small results",
         Handling.REWRITTEN, _RELATIVE, "It is computed as 1 / (1 + exp(-x)); Sigmoid stays between quantized values."),
    _row(("aten.silu",), "float32 below -5 between convolutions", "has an absolute error of 1.5e-6",
         "keeps the digits of small results", Handling.KEPT, _RELATIVE,
         "The exact formula takes half as much time again there, and the next convolution adds the results up."),
    _row(("aten.elu", "aten.selu"), "float32 from -0.004 to 0", "returns exp(x) - 1 without its digits",
         "keeps them", Handling.REWRITTEN, _RELATIVE, "With t = tanh(x / 2), it is computed as 2 t / (1 - t)."),
    _row(("aten.hardswish", "aten.hardsigmoid"), "inputs close to -3, and over 5e37",
         "adds the rounded x / 6 to 1 / 2, so digits cancel, and is finite", "computes x + 3 exactly, and overflows",
         Handling.KEPT, _KEPT, points=("ordinary", "limits")),
    _row(("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_bicubic2d", "aten.upsample_trilinear3d",
          "aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa", "aten.adaptive_avg_pool2d",
          "aten.adaptive_avg_pool3d", "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d"),
         "NaN and infinity", "may spread them over other pixels, since it multiplies by a matrix with zeros",
         "spreads them over their neighbours", Handling.KEPT, _KEPT, points=_INFINITE, is_noted=False),
    _row(("aten.grid_sampler_2d",), "coordinates over 2^20 pixels away", "may read other pixels", "reads the border",
         Handling.KEPT, _KEPT, points=("large", "limits"), is_noted=False),
    _row(("aten.scaled_dot_product_attention",), "NaN and infinity in masked keys", "leaves them out",
         "returns NaN for every query that masks them", Handling.KEPT, _KEPT, points=_INFINITE, is_noted=False),
    _row(("aten.gelu",), "infinities and the largest numbers", "returns the limit", "returns NaN or infinity",
         Handling.KEPT, _KEPT, points=("infinities", "limits"), is_noted=False),
    _row(("aten.var_mean",), "infinities", "returns an infinite mean", "returns NaN", Handling.KEPT, _KEPT,
         points=("infinities", "only -infinity"), is_noted=False),
    _row(("aten.add", "aten.sub"), "products with alpha that overflow", "returns infinity or NaN",
         "adds before it rounds the product", Handling.KEPT, _KEPT, points=("limits",), is_noted=False),
    _row(("aten.remainder", "aten.fmod"), "quotients that overflow", "returns the exact remainder", "returns NaN",
         Handling.KEPT, _KEPT, points=("limits", "subnormal"), is_noted=False),
    _row(("aten.topk", "aten.sort", "aten.argsort"), "equal values", "may return other indices",
         "chooses by its own order", Handling.KEPT, _KEPT, points=("zeros", "equal", "two values"), is_noted=False),
    _row(("quantized_decomposed.quantize_per_tensor",), "NaN", "returns the smallest value of the range",
         "returns the integer 0", Handling.KEPT, _KEPT, points=("NaN",), is_noted=False),
    _row(("aten.where", "aten.masked_fill", "aten.expm1", "aten.log1p", "aten.trunc", "aten.lerp", "aten.nan_to_num",
          "aten.remainder", "aten.floor_divide", "aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.tril",
          "aten.elu", "aten.celu", "aten.prelu", "aten.log_sigmoid"),
         "zeros", "may return 0.0 for -0.0, or the reverse", "keeps the sign", Handling.KEPT, _SPECIAL,
         points=("signs of zero",),
         is_noted=False),
)  # fmt: skip
