"""The portable kernel library: importing it imports every family, which completes `TABLE`."""

from __future__ import annotations

from delegate.kernels import (  # noqa: F401 - imported for their rows
    activation,
    adaptive_pooling,
    attention,
    backward,
    binary,
    casting,
    columns,
    comparison,
    convolution,
    copies,
    creation,
    distance,
    embedding_bag,
    grid_sample,
    indexing,
    linear,
    normalization,
    padding,
    pooling,
    random,
    reduction,
    resize,
    scan,
    scatter,
    softmax,
    sorting,
    spectral,
    unary,
    views,
)
from delegate.kernels.portable_table import TABLE

__all__ = ["TABLE"]
