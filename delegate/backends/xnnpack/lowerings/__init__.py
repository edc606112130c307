"""The lowerings of the XNNPACK backend, by family; importing this package fills the one `TABLE`."""

from delegate.backends.xnnpack.lowerings import (
    activations,
    attention,
    convolution,
    elementwise,
    gathering,
    indexing,
    integers,
    linear,
    normalization,
    patterns,
    pooling,
    quantization,
    reduction,
    resize,
    results,
    shape,
)
from delegate.backends.xnnpack.lowerings.table import TABLE

__all__ = [
    "TABLE",
    "activations",
    "attention",
    "convolution",
    "elementwise",
    "gathering",
    "indexing",
    "integers",
    "linear",
    "normalization",
    "patterns",
    "pooling",
    "quantization",
    "reduction",
    "resize",
    "results",
    "shape",
]
