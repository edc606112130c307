"""Evaluation of polynomials, for special functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from delegate.kernels.half_precision import Array


def polynomial(coefficients: Sequence[float] | Array, x: Array) -> Array:
    """Evaluate the polynomial with these coefficients, lowest first, at each element of a float array."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += coefficient
    return total
