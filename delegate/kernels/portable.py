"""The portable kernel library, whose import imports every family, which completes `TABLE`."""

from __future__ import annotations

from delegate.kernels import (  # noqa: F401 - imported for their rows
    activation,
    assertions,
    attention,
    backward,
    binary,
    cached_attention,
    convolution,
    copies,
    data_sizes,
    detection,
    distance,
    indexing,
    interpolation,
    linear_algebra,
    normalization,
    pooling,
    prims,
    quantization,
    random,
    recurrent,
    reduction,
    softmax,
    sorting,
    spectral,
    statistics,
    unary,
    views,
    windows,
)
from delegate.kernels.table import TABLE

__all__ = ["TABLE"]
