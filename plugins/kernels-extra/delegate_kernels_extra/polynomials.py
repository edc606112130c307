"""Orthogonal polynomials of Chebyshev, Hermite, Laguerre and Legendre, by recurrence or in closed form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import Array
from delegate.kernels.operands import WIDE, Operand, cast
from delegate.kernels.table import BOOL, INT
from delegate_kernels_extra.table import TABLE

_CLOSED = 6  # above this degree the closed form is used, if there is one
_MAX_STEPS = 1 << 16  # of a recurrence; torch takes as many as the degree, which is for hours if it is not a real one
_HERMITE = {np.dtype(np.float32): 128, np.dtype(np.float64): 512}  # above this degree torch returns NaN


class _Family(NamedTuple):
    """A family of polynomials P(0) = 1, P(1), P(k), ..., each computed from the two before.

    Attributes:
        first: P(1) of x.
        step: P(k + 1) of k, x, P(k) and P(k - 1).
        closed: P(n) of n and acos(x), for |x| < 1.
        limited: if degrees above a limit give NaN.
    """

    first: Callable[[Array], Array]
    step: Callable[[int, Array, Array, Array], Array]
    closed: Callable[[Array, Array], Array] | None = None
    limited: bool = False


def _chebyshev(offset: int, factor: int, closed: Callable[[Array, Array], Array]) -> _Family:
    return _Family(lambda x: factor * x + offset, lambda k, x, q, p: 2 * x * q - p, closed)


_CHEBYSHEV = {
    "t": _chebyshev(0, 1, lambda n, angle: np.cos(n * angle)),
    "u": _chebyshev(0, 2, lambda n, angle: np.sin((n + 1) * angle) / np.sin(angle)),
    "v": _chebyshev(-1, 2, lambda n, angle: np.cos((n + 0.5) * angle) / np.cos(angle / 2)),
    "w": _chebyshev(1, 2, lambda n, angle: np.sin((n + 0.5) * angle) / np.sin(angle / 2)),
}
_OTHERS = {
    "hermite_polynomial_h": _Family(lambda x: 2 * x, lambda k, x, q, p: 2 * x * q - 2 * k * p, limited=True),
    "hermite_polynomial_he": _Family(lambda x: x, lambda k, x, q, p: x * q - k * p, limited=True),
    "laguerre_polynomial_l": _Family(lambda x: 1 - x, lambda k, x, q, p: ((2 * k + 1 - x) * q - k * p) / (k + 1)),
    "legendre_polynomial_p": _Family(lambda x: x, lambda k, x, q, p: ((2 * k + 1) * x * q - k * p) / (k + 1)),
}


def _evaluate(family: _Family, shifted: bool, x: Operand, n: Operand, *, out: Array) -> None:
    """Evaluate the polynomial of degree n at x, or at 2 x - 1; 0 for negative degrees.

    x and n broadcast; n is truncated to an integer.

    Raises:
        KernelError: a degree needs too many steps.
    """
    at, degree = np.broadcast_arrays(cast(x, out.dtype), np.asarray(n).astype(np.int64))
    at = 2 * at - 1 if shifted else at
    before, now = np.ones_like(at), np.asarray(family.first(at))
    np.copyto(out, np.where(degree < 0, 0, np.where(degree == 0, before, now)))
    left = degree > 1
    if family.limited:
        np.copyto(out, np.nan, where=degree > _HERMITE[out.dtype])
        left &= degree <= _HERMITE[out.dtype]
    if family.closed is not None:
        inside = left & (degree > _CLOSED) & (np.abs(at) < 1)
        angle = np.arccos(np.where(inside, at, 0).astype(np.float64))
        np.copyto(out, family.closed(degree, angle), where=inside, casting="same_kind")
        left &= ~inside
        ends = left & (np.abs(at) == 1)  # all degrees at once: the quotient may be 0 / 0 there
        np.copyto(out, _at_ends(family, degree, at), where=ends, casting="same_kind")
        left &= ~ends
    k = 1
    while left.any():
        if k == _MAX_STEPS:
            raise KernelError(f"a polynomial of the degree {degree[left].max()} takes too many steps")
        before, now = now, np.asarray(family.step(k, at, now, before), out.dtype)
        k += 1
        np.copyto(out, now, where=left & ((degree == k) | np.isnan(now)))
        left &= (degree > k) & ~np.isnan(now)


def _at_ends(family: _Family, degree: Array, x: Array) -> Array:
    """Evaluate P(n) at 1 and -1, where it is linear in n up to the sign of x ** n."""
    sign = np.where((x < 0) & (degree % 2 != 0), -1, 1)
    slope = np.abs(np.asarray(family.first(x))) - 1
    return np.asarray(sign * (1 + degree * slope))


_FAMILIES = {
    **{f"chebyshev_polynomial_{kind}": (family, False) for kind, family in _CHEBYSHEV.items()},
    **{f"shifted_chebyshev_polynomial_{kind}": (family, True) for kind, family in _CHEBYSHEV.items()},
    **{name: (family, False) for name, family in _OTHERS.items()},
}
for _name, (_family, _shifted) in _FAMILIES.items():
    _ops = [f"aten.special_{_name}.{form}" for form in ("default", "x_scalar", "n_scalar")]
    TABLE.kernel(*_ops, dtypes=WIDE | INT | BOOL)(partial(_evaluate, _family, _shifted))
