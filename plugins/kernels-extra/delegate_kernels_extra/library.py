"""The kernel library, as its entry point names it: importing every module completes `TABLE`."""

from __future__ import annotations

from delegate_kernels_extra import (  # noqa: F401 - imported for their rows
    bessel,
    distributions,
    fractional_pooling,
    gamma,
    histograms,
    matrices,
    numbers,
    polynomials,
    positions,
)
from delegate_kernels_extra.table import TABLE

__all__ = ["TABLE"]
