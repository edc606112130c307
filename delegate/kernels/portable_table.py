"""The table of the portable kernels."""

from __future__ import annotations

from delegate.kernels.table import KernelTable

TABLE = KernelTable("portable")
