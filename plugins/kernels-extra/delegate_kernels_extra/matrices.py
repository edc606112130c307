"""LU factors, determinants, pseudoinverses and exponentials of matrices (..., m, n), and products of three tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from delegate.kernels.half_precision import Array
from delegate.kernels.linear_algebra import (
    DTYPES,
    FLOATS,
    lu_factor,
    require_finite,
    solve,
    solve_triangle,
    transpose,
    triangle_of,
    triangles,
)
from delegate_kernels_extra.table import TABLE


def _row_order(pivots: Array, rows: int) -> Array:
    """Return the row at each place after all swaps: (..., steps) -> (..., rows)."""
    flat = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    order, batch = np.tile(np.arange(rows), (len(flat), 1)), np.arange(len(flat))
    for k in range(flat.shape[1]):
        other = flat[:, k] - 1
        order[batch, k], order[batch, other] = order[batch, other], order[batch, k]
    return order.reshape(*pivots.shape[:-1], rows)


def _permutation(pivots: Array, rows: int, dtype: np.dtype[Any]) -> Array:
    """Return P with P @ L @ U equal to the factored matrix."""
    return transpose(np.eye(rows, dtype=dtype)[_row_order(pivots, rows)])


@TABLE.kernel("aten.linalg_lu.default", dtypes=FLOATS)
def linalg_lu(x: Array, pivot: bool, *, out: tuple[Array, Array, Array]) -> None:
    factors, pivots = lu_factor(x)
    out[0][...] = _permutation(pivots, x.shape[-2], x.dtype)
    out[1][...], out[2][...] = triangles(factors)


@TABLE.kernel("aten.lu_unpack.default", dtypes=DTYPES)
def lu_unpack(factors: Array, pivots: Array, data: bool, permutation: bool, *, out: tuple[Array, Array, Array]) -> None:
    """Compute P, L and U; results that are not requested are empty or 0."""
    for result in out:
        result.fill(0)
    if permutation:
        out[0][...] = _permutation(pivots, factors.shape[-2], factors.dtype)
    if data:
        out[1][...], out[2][...] = triangles(factors)


@TABLE.kernel("aten.linalg_lu_solve.default", dtypes=DTYPES)
def linalg_lu_solve(factors: Array, pivots: Array, right: Array, left: bool, adjoint: bool, *, out: Array) -> None:
    lower, upper = triangles(factors)
    matrix = _permutation(pivots, factors.shape[-2], factors.dtype) @ lower @ upper
    out[...] = solve(transpose(matrix, True) if adjoint else matrix, right, left)


@TABLE.kernel("aten._linalg_det.default", dtypes=DTYPES)
def linalg_det(x: Array, *, out: tuple[Array, Array, Array]) -> None:
    """Compute the determinant, the LU factors and the pivots.

    Torch sometimes returns them for the transposed matrix.
    """
    out[0][...] = np.linalg.det(x)
    out[1][...], out[2][...] = lu_factor(x)


@TABLE.kernel("aten._linalg_slogdet.default", dtypes=DTYPES)
def linalg_slogdet(x: Array, *, out: tuple[Array, Array, Array, Array]) -> None:
    """Compute the sign of the determinant and the logarithm of its size; other results as in `linalg_det`."""
    out[0][...], out[1][...] = np.linalg.slogdet(x)
    out[2][...], out[3][...] = lu_factor(x)


@TABLE.kernel("aten.cholesky_solve.default", dtypes=FLOATS)
def cholesky_solve(right: Array, factor: Array, upper: bool, *, out: Array) -> None:
    """Solve for the matrix with this factor."""
    lower = _lower(factor, upper)
    out[...] = solve_triangle(transpose(lower, True), solve_triangle(lower, right, False), True)


@TABLE.kernel("aten.cholesky_inverse.default", dtypes=FLOATS)
def cholesky_inverse(factor: Array, upper: bool, *, out: Array) -> None:
    lower = _lower(factor, upper)
    out[...] = np.linalg.inv(lower @ transpose(lower, True))


def _lower(factor: Array, upper: bool) -> Array:
    return transpose(np.triu(factor), True) if upper else np.tril(factor)


@TABLE.kernel("aten.triangular_solve.default", dtypes=FLOATS)
def triangular_solve(
    right: Array, x: Array, upper: bool, transposed: bool, unitriangular: bool, *, out: tuple[Array, Array]
) -> None:
    """Compute the solution, and copy the matrix."""
    triangle = triangle_of(x, upper, unitriangular)
    out[0][...] = solve_triangle(transpose(triangle) if transposed else triangle, right, upper != transposed)
    out[1][...] = x


@TABLE.kernel("aten.linalg_pinv.atol_rtol_tensor", dtypes=FLOATS)
def linalg_pinv(x: Array, atol: Array | None, rtol: Array | None, hermitian: bool, *, out: Array) -> None:
    """Compute the pseudoinverse; singular values up to atol, or up to rtol times the greatest, count as 0."""
    if x.size == 0:
        out.fill(0)
        return
    require_finite(x)
    left, values, right = np.linalg.svd(x, full_matrices=False, hermitian=hermitian)
    if rtol is None:
        rtol = np.asarray(0.0 if atol is not None and np.all(atol > 0) else max(x.shape[-2:]) * np.finfo(x.dtype).eps)
    least = np.maximum(np.asarray(0.0 if atol is None else atol)[..., None], rtol[..., None] * values[..., :1])
    inverse = np.where(values > least, 1 / values, 0).astype(values.dtype)
    out[...] = transpose(right, True) @ (inverse[..., None] * transpose(left, True))


@TABLE.kernel("aten.linalg_matrix_exp.default", dtypes=FLOATS)
def matrix_exp(x: Array, *, out: Array) -> None:
    """Compute the exponential: halve the matrix until its norm is at most 1/2, sum the series, square as often."""
    if x.size == 0:
        out.fill(0)
        return
    norm = float(np.abs(x).sum(axis=-1).max())
    halvings = max(0, math.ceil(math.log2(norm)) + 1) if 0 < norm < math.inf else 0
    scaled = x.astype(np.result_type(x, np.float64)) / 2.0**halvings
    total = term = np.broadcast_to(np.eye(x.shape[-1], dtype=scaled.dtype), x.shape)
    for k in range(1, 15):
        term = term @ scaled / k
        total = total + term
    for _ in range(halvings):
        total = total @ total
    out[...] = total
