"""The table that the families of portable kernels register into."""

from __future__ import annotations

from delegate.kernels.table import KernelTable

TABLE = KernelTable("portable")
