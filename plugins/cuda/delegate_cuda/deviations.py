"""Where kernels of TVM differ from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backend.deviations import Deviation, Handling

_TEST = "tests/backends/test_special_values.py"
_row = partial(Deviation, "TVM 0.27", handling=Handling.KEPT, test=_TEST)

DEVIATIONS = (
    _row(
        ("aten.remainder",), "infinite divisors", "returns NaN", "returns the dividend", points=("infinities", "limits")
    ),
    _row(
        ("aten.tanh", "aten.atanh", "aten.elu", "aten.remainder"), "-0.0", "returns 0.0", "returns -0.0",
        points=("signs of zero",), is_noted=False,
    ),
    _row(
        ("aten.amax", "aten.amin", "aten.argmax", "aten.argmin", "aten.max_pool2d", "aten.upsample_bilinear2d"), "NaN",
        "may return a number", "returns NaN", points=("NaN",), advice="`nan: exact` leaves these operators to others.",
    ),
)  # fmt: skip
