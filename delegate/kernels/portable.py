"""The portable kernel library: importing it imports every family, which completes `TABLE`."""

from __future__ import annotations

from delegate.kernels import (  # noqa: F401 - imported for their rows
    activation,
    binary,
    casting,
    comparison,
    unary,
)
from delegate.kernels.portable_table import TABLE

__all__ = ["TABLE"]
