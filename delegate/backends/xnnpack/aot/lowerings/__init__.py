"""The lowerings of the XNNPACK backend, by operator family. Importing this package fills `TABLE`."""

from delegate.backends.xnnpack.aot.lowerings import (
    activations,
    attention,
    convolution,
    elementwise,
    gather_scatter,
    indexing,
    integers,
    linear,
    normalization,
    pooling,
    quantization,
    reduction,
    resize,
    shape,
    views,
)
from delegate.backends.xnnpack.aot.lowerings.table import TABLE

__all__ = [
    "TABLE",
    "activations",
    "attention",
    "convolution",
    "elementwise",
    "gather_scatter",
    "indexing",
    "integers",
    "linear",
    "normalization",
    "pooling",
    "quantization",
    "reduction",
    "resize",
    "shape",
    "views",
]
