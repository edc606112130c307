"""Where Qualcomm's HTP differs from torch, and what this backend does about each difference."""

from __future__ import annotations

from functools import partial

from delegate.backends.deviations import Deviation, Handling

_row = partial(Deviation, "QNN in onnxruntime-qnn 2.7.0", handling=Handling.KEPT)
_INFINITY = "tests/backends/onnx/test_infinity.py"

DEVIATIONS = (
    _row(
        (), "NaN, infinities and values beyond float16, such as 1e6", "returns finite numbers of 65,504 or more",
        "keeps them", test=_INFINITY, points=("NaN", "infinities", "only -infinity", "limits", "large"),
    ),
    _row(
        ("aten.eq", "aten.ne", "aten.lt", "aten.le", "aten.gt", "aten.ge"), "infinities",
        "compares them as numbers of 65,504 or more, or as NaN", "compares infinities", test=_INFINITY,
        points=("infinities", "only -infinity", "limits"),
    ),
    _row(
        ("aten.linalg_vector_norm",), "2-norms of 256 or more", "overflows, since squares exceed float16",
        "returns the norm", test=_INFINITY, points=("tails", "large", "limits"),
    ),
)  # fmt: skip
