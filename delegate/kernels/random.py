"""Random tensors from the generator of the table, which `TABLE.seed` restarts. The numbers differ from torch's."""

from __future__ import annotations

import math
from functools import partial
from operator import index
from typing import Any

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array, to_bfloat16
from delegate.kernels.table import COMPLEX, FLOAT, INT, REAL, TABLE
from delegate.program.dtypes import DType

_FLOAT = FLOAT - {DType.float16}
_kernel = partial(TABLE.kernel, random=True)


@_kernel("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", dtypes=_FLOAT)
def rand(*_args: Any, out: Array) -> None:
    """Draw uniform numbers in [0, 1)."""
    TABLE.generator.random(dtype=out.dtype, out=out)


@_kernel("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", dtypes=COMPLEX)
def rand_complex(*_args: Any, out: Array) -> None:
    """Draw complex numbers with both parts uniform in [0, 1)."""
    out.real, out.imag = TABLE.generator.random((2, *out.shape), dtype=out.real.dtype)


@_kernel("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", dtypes={DType.float16})
def rand_float16(*_args: Any, out: Array) -> None:
    """Draw as many bits as the type has: a float32 close to 1 would round to 1."""
    np.divide(TABLE.generator.integers(1 << 11, size=out.shape), 1 << 11, out=out, casting="same_kind")


@_kernel("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", dtypes={DType.bfloat16})
def rand_bfloat16(*_args: Any, out: Array) -> None:
    to_bfloat16(np.asarray(TABLE.generator.integers(1 << 8, size=out.shape) / np.float32(1 << 8)), out)


@_kernel("aten.randn.default", "aten.randn.generator", "aten.randn_like.default", dtypes=_FLOAT | COMPLEX)
def randn(*_args: Any, out: Array) -> None:
    """Draw normal numbers of mean 0 and standard deviation 1; both parts of complex numbers share the variance."""
    if out.dtype.kind == "c":
        out.real, out.imag = TABLE.generator.normal(0, math.sqrt(0.5), (2, *out.shape))
    else:
        TABLE.generator.standard_normal(dtype=out.dtype, out=out)


@_kernel("aten.randperm.default", "aten.randperm.generator", dtypes=REAL)
def randperm(n: int, *_args: Any, out: Array) -> None:
    np.copyto(out, TABLE.generator.permutation(n), casting="unsafe")


@_kernel("aten.randint.default", "aten.randint.generator", dtypes=REAL)
def randint(high: int, *_args: Any, out: Array) -> None:
    _draw_integers(0, high, out)


@_kernel("aten.randint.low", "aten.randint.low_generator", dtypes=REAL)
def randint_low(low: int, high: int, *_args: Any, out: Array) -> None:
    _draw_integers(low, high, out)


@_kernel("aten.randint_like.default", dtypes=REAL)
def randint_like(x: Array, high: int, *_args: Any, out: Array) -> None:
    _draw_integers(0, high, out)


@_kernel("aten.randint_like.low_dtype", dtypes=REAL)
def randint_like_low(x: Array, low: int, high: int, *_args: Any, out: Array) -> None:
    _draw_integers(low, high, out)


def _draw_integers(low: int, high: int, out: Array) -> None:
    """Draw integers in [low, high), where an array of limits is rejected, as torch takes numbers alone."""
    np.copyto(out, TABLE.generator.integers(index(low), index(high), size=out.shape), casting="unsafe")


@_kernel("aten.uniform.default", dtypes=_FLOAT)
def uniform(x: Array, low: float, high: float, _generator: None, *, out: Array) -> None:
    np.copyto(out, TABLE.generator.uniform(low, high, out.shape), casting="same_kind")


@_kernel(
    "aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor", "aten.normal.float_float",
    dtypes=_FLOAT,
)  # fmt: skip
def normal(mean: Any, std: Any, *_args: Any, out: Array) -> None:
    np.copyto(out, TABLE.generator.normal(mean, std, out.shape), casting="same_kind")


@_kernel("aten.normal_functional.default", dtypes=_FLOAT)
def normal_like(x: Array, mean: float, std: float, _generator: None, *, out: Array) -> None:
    np.copyto(out, TABLE.generator.normal(mean, std, out.shape), casting="same_kind")


@_kernel("aten.exponential.default", dtypes=_FLOAT)
def exponential(x: Array, rate: float, _generator: None, *, out: Array) -> None:
    np.copyto(out, TABLE.generator.exponential(1 / rate, out.shape), casting="same_kind")


@_kernel("aten.bernoulli.p", "aten.bernoulli.Tensor", dtypes=_FLOAT | INT)
def bernoulli_p(x: Array, probability: Any, _generator: None, *, out: Array) -> None:
    """Draw 1 with one probability, else 0, in the shape of `x`."""
    np.copyto(out, TABLE.generator.random(out.shape) < probability)


@_kernel("aten.multinomial.default", dtypes=_FLOAT | {DType.int64})
def multinomial(weights: Array, samples: int, replacement: bool, _generator: None, *, out: Array) -> None:
    """Draw positions by weight; weights (n) or (rows, n) need not sum to 1."""
    rows, drawn = np.atleast_2d(weights).astype(np.float64), np.atleast_2d(out)
    totals = rows.sum(axis=1, keepdims=True)
    enough = replacement or samples <= np.count_nonzero(rows, axis=1).min(initial=samples)
    if not (rows >= 0).all() or not (np.isfinite(totals) & (totals > 0)).all() or not enough:
        raise KernelError(
            f"cannot draw {samples} of {rows.shape[1]} numbers with these weights",
            remedy="pass weights that are not negative, have a finite sum, and enough of which are above zero",
        )
    if replacement:
        each = np.arange(len(rows))[:, None]
        bounds = np.cumsum(rows / totals, axis=1)
        bounds /= bounds[:, -1:]
        points = TABLE.generator.random(drawn.shape) + each
        positions = np.searchsorted((bounds + each).reshape(-1), points, side="right") - each * rows.shape[1]
        np.copyto(drawn, np.minimum(positions, rows.shape[1] - 1))
        return
    with np.errstate(divide="ignore"):
        waits = (
            TABLE.generator.exponential(size=rows.shape) / rows
        )  # the order of the waiting times is the order of the draws
    np.copyto(drawn, np.argsort(waits, axis=1)[:, :samples])
