"""The lowerings of the XNNPACK backend, by family; importing this package fills the one `TABLE`."""

from delegate.backends.xnnpack.lowerings import (
    activations,
    convolution,
    elementwise,
    linear,
    pooling,
    results,
)
from delegate.backends.xnnpack.lowerings.table import TABLE

__all__ = ["TABLE", "activations", "convolution", "elementwise", "linear", "pooling", "results"]
