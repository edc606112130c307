"""Where XNNPACK differs from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backend.deviations import Deviation, Handling

_ROWS = "tests/backends/xnnpack/test_images.py"
_KEPT = "tests/backends/xnnpack/test_differences.py"
_SPECIAL = "tests/backends/test_special_values.py"
_row = partial(Deviation, "XNNPACK in LiteRT 2.3.0", handling=Handling.KEPT)
_ANYWHERE = ("example", "ordinary", "tails", "infinities", "NaN", "transposed")  # groups with some ordinary numbers

DEVIATIONS = (
    _row(("aten.exp",), "float32 from 88.38 to 88.72", "returns infinity", "returns up to 3.4e38", test=_KEPT,
         points=("tails",)),
    _row(("aten.sigmoid", "aten.silu", "aten.glu"), "magnitudes from 4.2e26 to 2.4e38", "returns NaN", "returns 0 or 1",
         test=_KEPT, advice="Mask with -1e9 or -infinity.", points=("limits",)),
    _row(("aten.silu", "aten.softplus", "aten.log_sigmoid"), "exponentials below exp(-87)", "returns 0",
         "returns results down to 1.2e-38", test=_KEPT, points=("tails",)),
    _row(("aten.log", "aten.log2", "aten.log10"), "numbers near 1 and from 2.4e38 on",
         "has an absolute error of 1e-7 near 1, and returns infinity from 2.4e38 on", "returns up to 88.7", test=_KEPT,
         points=(*_ANYWHERE, "limits")),
    _row(("aten.sqrt", "aten.rsqrt", "aten.pow"), "numbers from 8.5e37 on", "returns 3/2 or 2/3 of the result",
         "returns the result", test=_KEPT, points=("limits",)),
    _row(("aten.sin", "aten.cos"), "results close to 0, and angles over 1e6",
         "has an absolute error of 1e-7, of 1e-4 at 1e8, and returns NaN from 1.5e8 on",
         "keeps the digits of small results and reduces every angle exactly", test=_KEPT,
         points=(*_ANYWHERE, "large", "limits")),
    _row(("aten.hardswish",), "inputs close to -3, and over 5e37", "has an absolute error of 5e-8, and is finite",
         "computes x + 3 exactly, and overflows", test=_KEPT, points=("ordinary", "limits")),
    _row(("aten.log_sigmoid",), "results below 1e-15", "has a relative error of 4e-6", "has one of 2e-7", test=_KEPT,
         points=_ANYWHERE),
    _row((), "subnormal numbers, also within a composed operator", "treats them as 0", "computes with them",
         test=_SPECIAL, points=("subnormal",)),
    _row(("aten.linalg_vector_norm",), "norms below 1e-19", "returns 0, since squares are subnormal",
         "returns the norm", test=_SPECIAL, points=("tiny",)),
    _row(("aten.where", "aten.tril", "aten.triu", "aten.masked_fill"),
         "NaN or infinity where a constant mask removes it", "returns NaN, since it multiplies by the mask",
         "returns the other operand", test=_SPECIAL, points=("NaN", "infinities", "only -infinity")),
    _row(("aten.convolution",), "NaN or infinity beside the output_padding of a transposed convolution",
         "spreads it, since its kernel has zeros there", "keeps it in its place", test=_ROWS,
         points=("NaN", "infinities", "only -infinity")),
    _row(("aten.avg_pool2d", "aten.adaptive_avg_pool2d", "aten.upsample_bilinear2d", "aten.upsample_linear1d"),
         "infinities, also of float16", "may return NaN, which a note reports", "returns infinity", test=_SPECIAL,
         points=("infinities", "only -infinity", "large")),
    _row(("aten.gelu",), "infinities and the largest numbers", "returns the limit", "returns NaN or infinity",
         test=_SPECIAL, points=("infinities", "limits")),
    _row(("aten.var_mean",), "infinities", "returns an infinite mean", "returns NaN", test=_SPECIAL,
         points=("infinities", "only -infinity")),
    _row(("aten.add", "aten.sub"), "products with alpha that overflow", "returns infinity or NaN",
         "adds before it rounds the product", test=_KEPT, points=("limits",), is_noted=False),
    _row(("aten.mm", "aten.bmm", "aten.addmm", "aten.linear", "aten.matmul"), "sums of 2^16 products and more",
         "adds one product after the other in float32, and is 5e-4 off for 2^20", "adds up in blocks", test=_KEPT,
         points=("long",), is_noted=False),
    _row(("quantized_decomposed.quantize_per_tensor",), "NaN", "returns the largest value of the range",
         "returns the integer 0", test=_KEPT, points=("NaN",), is_noted=False),
    _row(("aten.sin", "aten.constant_pad_nd", "aten.leaky_relu",
          "aten.prelu", "aten.softplus", "aten.elu", "aten.maximum", "aten.minimum", "aten.relu", "aten.clamp",
          "aten.hardtanh"),
         "zeros", "may return 0.0 for -0.0, or the reverse", "keeps the sign, except between equal candidates",
         test=_SPECIAL, points=("signs of zero",), is_noted=False),
)  # fmt: skip
