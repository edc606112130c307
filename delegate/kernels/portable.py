"""The portable kernel library: importing it imports every family, which completes `TABLE`."""

from __future__ import annotations

from delegate.kernels import (  # noqa: F401 - imported for their rows
    activation,
    adaptive_pooling,
    attention,
    backward,
    binary,
    cached_attention,
    casting,
    columns,
    comparison,
    convolution,
    copies,
    creation,
    data_sizes,
    distance,
    embedding_bag,
    floats,
    grid_sample,
    indexing,
    linear,
    linear_algebra,
    normalization,
    padding,
    pooling,
    prims,
    quantization,
    random,
    recurrent,
    reduction,
    resize,
    scan,
    scatter,
    softmax,
    sorting,
    special,
    spectral,
    statistics,
    unary,
    views,
)
from delegate.kernels.portable_table import TABLE

__all__ = ["TABLE"]
