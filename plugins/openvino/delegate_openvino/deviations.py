"""Where OpenVINO's CPU plugin differs from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backend.deviations import Deviation, Handling
from delegate.backend.resizing import nearest_deviations

_row = partial(Deviation, "OpenVINO 2026.4.1")
_KEPT, _REJECTED, _REWRITTEN = Handling.KEPT, Handling.REJECTED, Handling.REWRITTEN
_ROWS = "plugins/openvino/tests/test_rows.py"
_RELATIVE = "plugins/openvino/tests/test_relative_errors.py"
_REMAINDERS = "plugins/openvino/tests/test_remainders.py"
_LONG = "plugins/openvino/tests/test_shared.py"
_PIXELS = "plugins/openvino/tests/test_shared.py"
_DIFFERENCES = "plugins/openvino/tests/test_kept_differences.py"
_SPECIAL = "plugins/openvino/tests/test_special_values.py"

# Rejected wherever the operator occurs.
EVERYWHERE = (
    _row(("aten.div.Tensor_mode", "aten.div.Scalar_mode"), "rounding modes",
         "rounds quotients close to a whole number differently", "rounds the exact quotient", _REJECTED, _ROWS),
    _row(("aten.atan2",), "signed zeros", "treats -0.0 as 0.0", "returns another angle", _REJECTED, _ROWS),
    _row(("aten.expm1", "aten.log1p", "aten.erfc"), "small results", "loses the digits of small results",
         "keeps them", _REJECTED, _ROWS),
    _row(("aten.logaddexp",), "operands that differ by more than 5", "loses the digits of the small term",
         "keeps them", _REJECTED, _RELATIVE),
    _row(("aten.erfinv",), "all inputs", "has a relative error of up to 5e-3", "has one of 6e-8", _REJECTED, _RELATIVE),
    _row(("aten.fmod", "aten.remainder"), "large quotients and infinite divisors",
         "computes a - b * floor(a / b) from a rounded quotient, and NaN", "returns the exact remainder",
         _REJECTED, _REMAINDERS),
    _row(("aten.log_sigmoid", "aten.log_sigmoid_forward"), "far negative inputs", "overflows", "returns the input",
         _REJECTED, _ROWS),
    _row(("aten.as_strided",), "transposed inputs", "reads elements in the order before the transposition",
         "reads them as they are in memory", _REJECTED, _ROWS),
    _row(("aten._cdist_forward",), "the exponents 0 and infinity", "returns NaN", "returns the distance",
         _REJECTED, _ROWS),
)  # fmt: skip

_VARIANCES = ("aten.var", "aten.std", "aten.var_mean", "aten.std_mean")
IGNORED_CORRECTION = _row(
    _VARIANCES, "all dimensions", "ignores the correction", "applies it", _REJECTED, _ROWS
)  # fmt: skip
ROUNDED_CORRECTION = _row(
    _VARIANCES, "fractional corrections", "rounds the correction", "applies it as it is", _REJECTED, _ROWS
)  # fmt: skip
INDICES_FROM_END = _row(
    ("aten.index",), "several index tensors", "counts no index from the end", "counts negative indices from there",
    _REJECTED, _ROWS,
)  # fmt: skip
COUNTED_PADDING = _row(
    ("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d"), "ceil_mode with count_include_pad",
    "counts elements beyond the padding", "counts those up to the padding", _REJECTED, _ROWS,
)  # fmt: skip
REGIONS_WITHOUT_AREA = _row(
    ("torchvision.roi_align",), "aligned regions without area whose number of samples is open", "returns NaN",
    "returns 0", _REJECTED, "plugins/openvino/tests/test_regions_of_interest.py",
)  # fmt: skip

DEVIATIONS = (
    *EVERYWHERE, IGNORED_CORRECTION, ROUNDED_CORRECTION, INDICES_FROM_END, COUNTED_PADDING, REGIONS_WITHOUT_AREA,
    *nearest_deviations("OpenVINO 2026.4.1", _PIXELS, in_the_middle=("ordinary",)),
    _row(("aten.elu", "aten.selu", "aten.celu", "aten.erf", "aten.mish"), "float32 near 0 or in the tails",
         "loses the digits of small results", "keeps them", _REWRITTEN, _RELATIVE,
         "They are computed by tanh, by a series, and by one exponential."),
    _row(("aten.sigmoid", "aten.silu", "aten.glu", "aten.mish"), "exponentials below exp(-86.9)",
         "returns 0", "returns results down to 1.2e-38", _KEPT, _RELATIVE, points=("tails",)),
    _row(("aten.exp",), "float32 from 88.38 to 88.72", "returns infinity", "returns up to 3.4e38", _KEPT, _RELATIVE,
         points=("tails",)),
    _row(("aten.sum", "aten.mean", "aten.linalg_vector_norm", "aten.var", "aten.std", "aten.var_mean", "aten.cumsum"),
         "many elements", "adds one number after the other in float32, which stops at 2**24", "adds up in pairs",
         _REWRITTEN, _LONG, "Such sums are in stages, unless they are of one dimension of dynamic size."),
    _row(("aten.layer_norm", "aten.native_layer_norm", "aten.group_norm", "aten.native_group_norm",
          "aten.instance_norm", "aten._native_batch_norm_legit"), "more than 8,192 elements of known sizes",
         "loses digits of the mean and the variance", "keeps them", _REWRITTEN, _LONG,
         "Means are in stages, and the mean of the deviations is subtracted too."),
    _row(("aten.div",), "subnormal divisors", "returns NaN, infinity or 0", "returns the quotient",
         _KEPT, _SPECIAL, points=("subnormal",)),
    _row(("aten.hardswish",), "inputs close to -3, and over 5e37",
         "adds the rounded x / 6 to 1 / 2, so digits cancel, and is finite", "computes x + 3 exactly, and overflows",
         _KEPT, _DIFFERENCES, points=("ordinary", "limits")),
    _row(("aten.constant_pad_nd", "aten.relu", "aten.hardtanh", "aten.maximum", "aten.minimum"), "zeros",
         "may return 0.0 for -0.0, or the reverse", "keeps the sign, except between equal candidates", _KEPT, _SPECIAL,
         points=("signs of zero",), is_noted=False),
    _row(("aten.cumsum",), "bfloat16", "adds up in bfloat16, which is 76 % off after 1,024 elements",
         "adds up in float32", _REWRITTEN, _DIFFERENCES, "Running sums of 16-bit floats are computed in float32."),
    _row(("aten.scaled_dot_product_attention",), "bfloat16", "rounds scores to bfloat16, as a product and a softmax do",
         "keeps them in float32", _KEPT, _DIFFERENCES, "Attention in float32 takes 1.6 times as long.", ("bfloat16",),
         is_noted=False),
    _row(("aten.scaled_dot_product_attention",), "NaN and infinity in rows that see nothing", "returns 0",
         "returns NaN", _KEPT, _DIFFERENCES, points=("NaN", "infinities", "only -infinity"), is_noted=False),
    _row(("aten.upsample_bilinear2d",), "infinities", "leaves out pixels whose weight is 0", "multiplies them by 0",
         _KEPT, _DIFFERENCES, points=("infinities", "only -infinity"), is_noted=False),
    _row(("aten.grid_sampler_2d",), "coordinates that are infinite, NaN or over 2^20 pixels away",
         "returns NaN or reads other pixels", "reads the border", _KEPT, _DIFFERENCES,
         points=("NaN", "infinities", "large", "limits"), is_noted=False),
    _row(("aten.var_mean",), "infinities", "returns an infinite mean", "returns NaN", _KEPT, _DIFFERENCES,
         points=("infinities", "only -infinity"), is_noted=False),
    _row(("aten.add", "aten.sub"), "products with alpha that overflow", "returns infinity or NaN",
         "adds before it rounds the product", _KEPT, _DIFFERENCES, points=("limits",), is_noted=False),
    _row(("aten.topk", "aten.sort"), "equal values", "may return other indices", "chooses by its own order", _KEPT,
         _DIFFERENCES, points=("zeros", "equal", "two values", "integers"), is_noted=False),
    _row(("quantized_decomposed.quantize_per_tensor",), "quotients halfway between two integers",
         "divides by the scale, and may round to the other one", "multiplies by the rounded reciprocal", _KEPT,
         _DIFFERENCES, points=("small", "halves", "ordinary"), is_noted=False),
    _row(("aten.amax", "aten.max", "aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d"),
         "rows of nothing but -infinity", "returns the largest negative number", "returns -infinity", _KEPT, _SPECIAL,
         "`nan: exact` leaves these operators to others."),
)  # fmt: skip
