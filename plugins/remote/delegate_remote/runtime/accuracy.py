"""The SQNR of results, as torch's figures have it (docs/reference/accuracy.md), by NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from delegate.kernels.half_precision import from_bfloat16
from delegate.placement.runtime.accuracy_check import Array, lowest_sqnr_db
from delegate.program.dtypes import DType


def widen_bfloat16(array: Array, dtype: DType | None = None) -> Array:
    """Return an array of the runtime with a NumPy dtype. Arrays of bfloat16, stored as bits, become float32."""
    return from_bfloat16(array) if dtype is DType.bfloat16 else array


def sqnr_db(actual: Sequence[Sequence[Array]], expected: Sequence[Sequence[Array]]) -> float:
    """Return the SQNR of the least accurate output, in dB; see docs/reference/accuracy.md.

    Args:
        actual: Outputs of each call; bfloat16 as float32.
        expected: the same of the reference.

    Returns:
        Infinity for equal results, -infinity for another number or shape, NaN if no output has information.
    """
    if any(len(got) != len(reference) for got, reference in zip(actual, expected, strict=True)):
        return -math.inf
    outputs = zip(zip(*actual, strict=True), zip(*expected, strict=True), strict=True)
    figures = [_sqnr_db(got, reference) for got, reference in outputs]
    return lowest_sqnr_db(figures)


def _sqnr_db(actual: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return the SQNR of one output over all calls."""
    if any(got.shape != reference.shape for got, reference in zip(actual, expected, strict=True)):
        return -math.inf
    got, reference = (np.concatenate([_flatten(array) for array in arrays]) for arrays in (actual, expected))
    if not reference.size:
        return math.nan
    finite = np.isfinite(got) & np.isfinite(reference)
    if not np.array_equal(got[~finite], reference[~finite], equal_nan=True):
        return -math.inf
    if not finite.any():
        return math.nan
    got, reference = got[finite], reference[finite]
    noise = float(np.square(got - reference).sum())
    if not noise:
        return math.inf
    is_integer = all(array.dtype.kind in "biu" for array in expected)
    centre = float(reference.mean()) if is_integer else 0.0  # a quantized tensor has its zero anywhere
    signal = float(np.square(reference).sum()) - centre**2 * reference.size
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _flatten(array: Array) -> Array:
    """Return the elements as float64 in one dimension; complex elements as real and imaginary parts."""
    flat = array.reshape(-1)
    parts = np.stack((flat.real, flat.imag)).reshape(-1) if array.dtype.kind == "c" else flat
    return parts.astype(np.float64)
