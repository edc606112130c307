"""The kernel table: attention of few queries to a cache in compiled loops.

Numba is imported on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as cached
from types import ModuleType
from typing import Any

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.cached_attention import CacheAttention, register
from delegate.kernels.half_precision import Array
from delegate.kernels.table import KernelTable
from delegate.plugins import BLOCK_VARIABLE, one_line

TABLE = KernelTable("numba")
_FLOAT32, _FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
_ENTRIES = frozenset(map(np.dtype, (np.float32, np.float16, np.uint16, np.int8)))  # uint16: the bits of bfloat16
_FEW = 16  # rows up to which the loops are faster than BLAS
_VERY_FEW = 4  # rows that NumPy multiplies one by one, as fast as memory delivers float32


class CompiledAttention(CacheAttention):
    """The attention of few rows in float32 in compiled loops; all others by BLAS."""

    def attend(
        self,
        query: Array,
        cache: tuple[Array, Array],
        scales: Sequence[Array | None],
        filled: slice,
        unseen: Array | None,
        softcap: float,
        out: Array,
    ) -> None:
        """Attend to the entries `filled` of some groups: query (groups, m, E) -> (groups, m, V)."""
        if not _is_compiled(query, *cache):
            return super().attend(query, cache, scales, filled, unseen, softcap, out)
        sums = np.empty((*query.shape[:2], cache[1].shape[2]), _FLOAT32)
        entries = map(_storage, cache)
        _loops().attend(query, *entries, *scales, filled.start, filled.stop, unseen, softcap, sums)
        np.copyto(out, sums)
        return None


register(TABLE, CompiledAttention())


def _is_compiled(query: Array, *cache: Array) -> bool:
    """Return true if the loops compute the attention. They check no sizes, since the kernel does."""
    rows = query.shape[1]
    if query.dtype != _FLOAT32 or rows > _FEW or (cache[0].dtype == _FLOAT32 and rows <= _VERY_FEW):
        return False
    return all(x.dtype in _ENTRIES for x in cache) and all(x.flags.c_contiguous for x in (query, *cache))


def _storage(entries: Array) -> Array:
    """Return entries in the dtypes of the loops."""
    return entries.view(np.int16) if entries.dtype == _FLOAT16 else entries


@cached
def _loops() -> ModuleType | Any:
    try:
        from delegate_numba import loops
    except ImportError as error:
        what = f"Numba cannot be imported: {one_line(error)}"
        raise KernelError(what, remedy=f"update numba, or block this library: {BLOCK_VARIABLE}=numba") from error
    return loops
