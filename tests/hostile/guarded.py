"""Arrays between pages that nobody may touch: a read or a write beside one of them ends the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

_PAGE = mmap.PAGESIZE
_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Room for some arrays, each with a forbidden page before and behind it."""

    def __init__(self, count: int, size: int) -> None:
        self._size = -(-size // _PAGE) * _PAGE
        self._memory = mmap.mmap(-1, count * (self._size + _PAGE) + _PAGE)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._count, self._next = count, 0
        for slot in range(count + 1):
            page = ctypes.c_void_p(self._bytes.ctypes.data + slot * (self._size + _PAGE))
            if _libc.mprotect(page, ctypes.c_size_t(_PAGE), _NONE):
                raise OSError(ctypes.get_errno(), "mprotect")

    def reset(self) -> None:
        """The arrays that were given are no longer in use."""
        self._next = 0

    def array(self, like: np.ndarray, *, at_end: bool) -> np.ndarray:
        """A row-major copy of an array that ends right before a forbidden page, or begins right behind one."""
        if like.nbytes > self._size or self._next == self._count:
            raise ValueError("no room is left")
        begin = _PAGE + self._next * (self._size + _PAGE)
        self._next += 1
        start = begin + (self._size - like.nbytes if at_end else 0)
        made: Any = self._bytes[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
        np.copyto(made, like)
        return made
