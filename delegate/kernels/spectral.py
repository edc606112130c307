"""Discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.table import COMPLEX, TABLE
from delegate.program.dtypes import DType
from delegate.program.raw import check_room

_DTYPES = COMPLEX | {DType.float32, DType.float64}
# torch's codes of normalization: none, 1 / sqrt(n), 1 / n. NumPy names the direction that is divided by n.
_Norm = Literal["backward", "ortho", "forward"]
_FORWARD: tuple[_Norm, ...] = ("backward", "ortho", "forward")
_INVERSE: tuple[_Norm, ...] = ("forward", "ortho", "backward")


def _require_elements(x: Array) -> None:
    """Raise KernelError for an empty transform, in which NumPy crashes."""
    if x.size == 0:
        raise KernelError("a Fourier transform of an empty tensor", remedy="pass a tensor with elements")


@TABLE.kernel("aten._fft_r2c.default", dtypes=_DTYPES)
def fft_r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool, *, out: Array) -> None:
    """Transform real to complex; with onesided, the last of the dimensions has only its first half."""
    _require_elements(x)
    transform = np.fft.rfftn if onesided else np.fft.fftn
    np.copyto(out, transform(x, axes=tuple(dim), norm=_FORWARD[normalization]), casting="same_kind")


@TABLE.kernel("aten._fft_c2r.default", dtypes=_DTYPES)
def fft_c2r(x: Array, dim: Sequence[int], normalization: int, last_size: int, *, out: Array) -> None:
    """Transform complex (the first half of the last dimension) to real, inverse."""
    _require_elements(x)
    *others, last = dim
    norm = _INVERSE[normalization]
    whole = np.fft.ifftn(x, axes=tuple(others), norm=norm) if others else x
    check_room((*whole.shape[:-1], last_size), whole.dtype, x, out)
    np.copyto(out, np.fft.irfft(whole, n=last_size, axis=last, norm=norm), casting="same_kind")


@TABLE.kernel("aten._fft_c2c.default", dtypes=_DTYPES)
def fft_c2c(x: Array, dim: Sequence[int], normalization: int, forward: bool, *, out: Array) -> None:
    _require_elements(x)
    if forward:
        result = np.fft.fftn(x, axes=tuple(dim), norm=_FORWARD[normalization])
    else:
        result = np.fft.ifftn(x, axes=tuple(dim), norm=_INVERSE[normalization])
    np.copyto(out, result, casting="same_kind")
