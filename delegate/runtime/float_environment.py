"""The floating-point environment of a thread: its rounding, and whether subnormal numbers count as 0."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc and musl: rounds to nearest, keeps subnormal numbers
_SIZE = 256  # bytes, more than fenv_t of any processor
_C = ctypes.CDLL(None) if sys.platform == "linux" else None


@contextlib.contextmanager
def default_float_environment() -> Iterator[None]:
    """Run a block in C's default environment, and restore the caller's afterwards. Other systems than Linux: no change.

    A library that opens a model in the block gives it the default, also in the threads that it starts. So results do
    not depend on `torch.set_flush_denormal` at that moment, and the library cannot change the caller's environment.
    """
    if _C is None:
        yield
        return
    saved = ctypes.create_string_buffer(_SIZE)
    _C.fegetenv(saved)
    _C.fesetenv(_DEFAULT)
    try:
        yield
    finally:
        _C.fesetenv(saved)
