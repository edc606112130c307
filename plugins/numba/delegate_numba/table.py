"""The kernel table: cached attention whose products with a cache of small types are compiled loops.

Numba is imported on first use.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.cached_attention import Products, register
from delegate.kernels.half_precision import Array
from delegate.kernels.table import KernelTable
from delegate.plugins import BLOCK_VARIABLE, one_line

TABLE = KernelTable("numba")
_FLOAT32, _FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
_ENTRIES = frozenset(map(np.dtype, (np.float16, np.uint16, np.int8)))  # uint16: the bits of bfloat16
_FEW = 16  # rows up to which the loops are faster than a conversion to float32 and BLAS


class CompiledProducts(Products):
    """The products of few rows with entries of small types in compiled loops; all others by BLAS."""

    def scores(self, query: Array, keys: Array, first: int, end: int) -> Array:
        """Multiply query (groups, m, E) with keys -> (groups, m, end - first)."""
        if not _is_compiled(query, keys):
            return super().scores(query, keys, first, end)
        scores = np.empty((*query.shape[:2], end - first), _FLOAT32)
        _loops().scores(query, _storage(keys), first, end, scores)
        return scores

    def weighted_sums(self, weights: Array, values: Array, first: int, end: int) -> Array:
        """Sum values by weights (groups, m, end - first) -> (groups, m, V)."""
        if not _is_compiled(weights, values):
            return super().weighted_sums(weights, values, first, end)
        sums = np.empty((*weights.shape[:2], values.shape[2]), _FLOAT32)
        _loops().weighted_sums(weights, _storage(values), first, end, sums)
        return sums


register(TABLE, CompiledProducts())


def _is_compiled(other: Array, cache: Array) -> bool:
    """Return true if the loops compute the product with a cache. They check no sizes, since the kernel does."""
    types = other.dtype == _FLOAT32 and cache.dtype in _ENTRIES
    return types and other.shape[1] <= _FEW and cache.flags.c_contiguous and other.flags.c_contiguous


def _storage(entries: Array) -> Array:
    """Return entries in the dtypes of the loops."""
    return entries.view(np.int16) if entries.dtype == _FLOAT16 else entries


@cache
def _loops() -> ModuleType | Any:
    try:
        from delegate_numba import loops
    except ImportError as error:
        what = f"Numba cannot be imported: {one_line(error)}"
        raise KernelError(what, remedy=f"update numba, or block this library: {BLOCK_VARIABLE}=numba") from error
    return loops
