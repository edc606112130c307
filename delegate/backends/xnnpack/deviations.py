"""Where XNNPACK differs from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backends.deviations import Deviation, Handling

_row = partial(
    Deviation, "XNNPACK in LiteRT 2.3.0", handling=Handling.KEPT, test="tests/backends/xnnpack/test_edges.py"
)

DEVIATIONS = (
    _row(("aten.exp",), "float32 from 88.38 to 88.72", "returns infinity", "returns up to 3.4e38"),
    _row(("aten.sigmoid", "aten.silu", "aten.glu"), "magnitudes from 4.2e26 to 2.4e38", "returns NaN", "returns 0 or 1",
         advice="Mask with -1e9 or -infinity."),
    _row(("aten.silu", "aten.mish", "aten.softplus", "aten.log_sigmoid"), "exponentials below exp(-87)", "returns 0",
         "returns results down to 1.2e-38"),
    _row(("aten.log",), "numbers from 2.4e38 on", "returns infinity", "returns up to 88.7"),
    _row(("aten.sqrt", "aten.rsqrt"), "numbers from 8.5e37 on", "returns 3/2 or 2/3 of the result",
         "returns the result"),
    _row(("aten.sin", "aten.cos"), "results close to 0", "has an absolute error of 1e-7",
         "keeps the digits of small results"),
    _row(("aten.hardswish",), "inputs close to -3", "has an absolute error of 5e-8", "computes x + 3 exactly"),
)  # fmt: skip
