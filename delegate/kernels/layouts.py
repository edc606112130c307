"""Kernels that need row-major arrays, adapted to arrays of any layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from delegate.kernels.kernel import Kernel


def with_any_layout(special: Kernel, general: Kernel | None) -> Kernel:
    """Return a kernel for arrays of any strides, from one that needs row-major arrays.

    Args:
        special: runs if all arrays are row-major.
        general: runs otherwise; None to copy the arrays for `special`.
    """
    otherwise = _with_copies(special.function) if general is None else _with_conversion(general)

    def function(*args: Any, out: Any) -> None:
        (special.function if all(map(_is_row_major, args)) else otherwise)(*args, out=out)

    in_place = special.in_place and (general is None or general.in_place)
    return replace(special, function=function, contiguous=False, in_place=in_place)


def _is_row_major(arg: Any) -> bool:
    if isinstance(arg, np.ndarray):
        return arg.flags.c_contiguous
    return all(map(_is_row_major, arg)) if isinstance(arg, list) else True


def _with_copies(function: Callable[..., None]) -> Callable[..., None]:
    return lambda *args, out: function(*map(_to_row_major, args), out=out)


def _to_row_major(arg: Any) -> Any:
    if isinstance(arg, list):
        return [_to_row_major(a) for a in arg]
    return arg.copy(order="C") if isinstance(arg, np.ndarray) and not arg.flags.c_contiguous else arg


def _with_conversion(kernel: Kernel) -> Callable[..., None]:
    """Return the kernel's function over NumPy arrays, with its conversion."""
    convert = kernel.convert
    if convert is None:
        return kernel.function

    def function(*args: Any, out: Any) -> None:
        kernel.function(*map(convert, args), out=tuple(map(convert, out)) if isinstance(out, tuple) else convert(out))

    return function
