"""Kernels of Prims, whose operands have one shape and dtype: most are rows of ATen's or one NumPy function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

# The rows of these modules are copied below.
from delegate.kernels import binary, copies, indexing, sorting, unary, views  # noqa: F401
from delegate.kernels.half_precision import Array
from delegate.kernels.reduction import variance
from delegate.kernels.sums import add
from delegate.kernels.table import ANY, COMPLEX, FLOAT, INT, REAL, TABLE

_SAME_NAME = {  # the overload of ATen with the same arguments
    "default": "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor log "
    "log10 log1p log2 neg reciprocal rsqrt sign signbit sin sinh sqrt tan tanh trunc bitwise_not isfinite atan2 fmax "
    "fmin gcd hypot maximum minimum cat clone real imag scalar_tensor round",
    "Tensor": "bitwise_and bitwise_or bitwise_xor eq ne lt le gt ge fmod mul remainder",
}
COPIED = {  # operators of ATen -> the Prims with their kernels
    **{f"{name}.{overload}": (name,) for overload, names in _SAME_NAME.items() for name in names.split()},
    "pow.Tensor_Tensor": ("pow",), "where.self": ("where",), "permute.default": ("transpose",),
    "squeeze.dims": ("squeeze",), "flip.default": ("rev",), "alias.default": ("view_of",),
    "erfinv.default": ("erf_inv",), "view.default": ("reshape",), "fill.Scalar": ("fill",),
    "_conj.default": ("conj",), "_conj_physical.default": ("conj_physical",),
    "clone.default": ("clone", "copy_strided", "device_put"), "bitwise_left_shift.Tensor": ("shift_left",),
    "bitwise_right_shift.Tensor": ("shift_right_arithmetic",),
}  # fmt: skip
for _aten, _prims in COPIED.items():
    for _row in TABLE.rows(f"aten.{_aten}"):
        for _prim in _prims:
            TABLE.add(replace(_row, op=f"prims.{_prim}.default"))


def _binary(ufunc: np.ufunc, x: Any, y: Any, *, out: Array) -> None:
    ufunc(x, y, out=out, casting="unsafe")  # a number takes the dtype of the tensor


for _name, _ufunc in (("add", np.add), ("sub", np.subtract)):
    TABLE.kernel(f"prims.{_name}.default", dtypes=FLOAT | INT | COMPLEX)(partial(_binary, _ufunc))


@TABLE.kernel("prims.div.default", dtypes=FLOAT | INT | COMPLEX)
def div(x: Any, y: Any, *, out: Array) -> None:
    """Divide; integers round towards zero, as in C."""
    if out.dtype.kind in "iu":
        quotient = np.floor_divide(x, y)
        np.add(quotient, (np.remainder(x, y) != 0) & ((np.less(x, 0)) != np.less(y, 0)), out=out, casting="unsafe")
    else:
        np.divide(x, y, out=out)


def _reduce(function: Any, x: Array, dims: Sequence[int] | None, _dtype: Any, *, out: Array) -> None:
    axes = tuple(range(x.ndim)) if dims is None else tuple(dims)
    function(x, axes, out=out) if x.ndim else np.copyto(out, x)


for _name, _function, _kinds in (
    ("sum", add, FLOAT | INT | COMPLEX),
    ("prod", np.multiply.reduce, FLOAT | INT | COMPLEX),
    ("amax", np.maximum.reduce, REAL),
    ("amin", np.minimum.reduce, REAL),
):
    TABLE.kernel(f"prims.{_name}.default", dtypes=_kinds)(partial(_reduce, _function))


@TABLE.kernel("prims.var.default", dtypes=FLOAT)
def var(x: Array, dims: Sequence[int] | None, correction: float | None, _dtype: Any, *, out: Array) -> None:
    axes = tuple(range(x.ndim)) if dims is None else tuple(dims)
    variance(x, axes, 1.0 if correction is None else correction, False, out)


@TABLE.view("prims.broadcast_in_dim.default", dtypes=ANY)
def broadcast_in_dim(x: Array, shape: Sequence[int], dims: Sequence[int]) -> Array:
    """Broadcast: dimension i of x becomes dimension dims[i] of the result; the others are new."""
    at = dict(zip(dims, x.shape, strict=True))
    index = tuple(slice(None) if dim in at else None for dim in range(len(shape)))
    return np.broadcast_to(x[index], tuple(shape))


@TABLE.view("prims.split_dim.default", dtypes=ANY)
def split_dim(x: Array, dim: int, outer: int) -> Array | None:
    inner = x.shape[dim] // outer if outer else 0
    return _reshape(x, (*x.shape[:dim], outer, inner, *x.shape[dim + 1 :]))


@TABLE.view("prims.collapse_view.default", "prims.collapse.default", dtypes=ANY)
def collapse(x: Array, start: int, end: int) -> Array | None:
    """Join the dimensions start to end, both included."""
    if x.ndim == 0:
        return x.reshape(1)
    return _reshape(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def _reshape(x: Array, shape: tuple[int, ...]) -> Array | None:
    result = x.view()
    try:
        result.shape = shape
    except AttributeError:  # its strides allow no view
        return None
    return result


@TABLE.kernel("prims.iota.default", dtypes=INT)
def iota(_length: int, start: int, step: int, *_: Any, out: Array) -> None:
    np.add(np.multiply(np.arange(out.size), step), start, out=out, casting="unsafe")


@TABLE.kernel("prims.full.default", "prims.full_like.default", dtypes=REAL | COMPLEX)
def full(_shape: Any, value: Any, *_: Any, out: Array) -> None:
    out.fill(value)
