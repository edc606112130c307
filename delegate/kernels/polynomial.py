"""Polynomials, which most special functions are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from delegate.kernels.halves import Array


def polynomial(coefficients: Sequence[float] | Array, x: Array) -> Array:
    """The polynomial with these coefficients, lowest first, at each element of a float array."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += coefficient
    return total
