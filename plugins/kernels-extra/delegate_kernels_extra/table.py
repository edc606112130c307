"""The table in which the modules of this package register their kernels."""

from __future__ import annotations

from delegate.kernels.table import KernelTable

TABLE = KernelTable("kernels-extra")
