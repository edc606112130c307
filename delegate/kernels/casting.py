"""Conversion between dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.portable_table import TABLE
from delegate.kernels.table import ANY
from delegate.program.dtypes import DType


@TABLE.kernel(
    "aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other",
    "aten.type_as.default", "prims.convert_element_type.default",
    dtypes=ANY - {DType.bfloat16},
)  # fmt: skip
def convert(x: Array, *_: Any, out: Array) -> None:
    """Copy into out's dtype as C casts do.

    Floats become integers towards zero, integers wrap, and complex numbers lose their imaginary part. float64 is
    rounded to float32 before float16, as in torch.
    """
    if x.dtype.kind == "c" and out.dtype.kind not in "cb":
        x = x.real
    if x.dtype == np.float64 and out.dtype == np.float16:
        x = x.astype(np.float32)
    np.copyto(out, x, casting="unsafe")
