"""The kernel library, as its entry point names it: importing every module completes `TABLE`."""

from __future__ import annotations

from delegate_kernels_extra import (  # noqa: F401 - imported for their rows
    bessel,
    fractional_pooling,
    gamma,
    histograms,
    polynomials,
)
from delegate_kernels_extra.table import TABLE

__all__ = ["TABLE"]
