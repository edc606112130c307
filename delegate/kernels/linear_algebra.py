"""Matrices (..., m, n): products, factorizations, inverses and solutions.

Singular matrices raise LinAlgError. Operators with a status ("_ex") raise it only if `check_errors` is set; otherwise
matrices without a result have NaN, and the status is the number of the zero pivot or of the minor that is not positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal

import numpy as np

from delegate.errors import KernelError
from delegate.kernels.half_precision import HALF, Array, widen_kernel
from delegate.kernels.operands import cast
from delegate.kernels.table import COMPLEX, FLOAT, INT, TABLE
from delegate.program import raw
from delegate.program.dtypes import DType

PRODUCT_DTYPES = (FLOAT | INT | COMPLEX) - {DType.float16}
_EXACT = (1 << 24) // (255 * 128)  # number of uint8 and int8 products that float32 sums exactly
_BLOCK = 32  # columns factored, and rows solved for, per step
FLOATS = COMPLEX | {DType.float32, DType.float64}
DTYPES = FLOATS | {DType.int32}  # int32 for pivots, and for status codes, 0 on success
Number = int | float | complex


@TABLE.kernel("aten.linear.default", dtypes=PRODUCT_DTYPES, whole=True)
def linear(x: Array, weight: Array, bias: Array | None, *, out: Array) -> None:
    """Multiply x (..., K) by weight (O, K) or (K) and add bias (O); all leading axes of x are rows of one matrix."""
    rows, columns = math.prod(x.shape[:-1]), 1 if weight.ndim == 1 else weight.shape[0]
    flat = out.reshape(rows, columns, copy=False)
    np.matmul(x.reshape(rows, x.shape[-1]), weight.reshape(columns, weight.shape[-1]).T, out=flat)
    if bias is not None:
        np.add(flat, bias, out=flat)


@TABLE.kernel("aten.mm.default", "aten.bmm.default", dtypes=PRODUCT_DTYPES)
def product(left: Array, right: Array, *, out: Array) -> None:
    np.matmul(left, right, out=out)


_multiply = widen_kernel(product, HALF)  # so only the matrices of groups that have rows are widened


@TABLE.kernel("aten._grouped_mm.default", dtypes={DType.float32, DType.int32} | HALF)
def grouped_mm(left: Array, right: Array, ends: Array | None, _bias: None, _dtype: DType | None, *, out: Array) -> None:
    """Multiply groups of matrices, see `grouped_product`; without ends, batches (groups, m, k) and (groups, k, n)."""
    if ends is None:
        _multiply(left, right, out=out)
    else:
        multiply_groups(left, right, ends, out)


@TABLE.kernel(
    "transformers.grouped_mm_fallback.default",
    dtypes={DType.float32, DType.float64, DType.int32, DType.int64} | HALF,
)
def grouped_mm_fallback(x: Array, weight: Array, ends: Array, *, out: Array) -> None:
    """Multiply x (rows, in), sorted by expert, with weight (experts, in, out), see `grouped_product`."""
    multiply_groups(x, weight, ends, out)


def multiply_groups(left: Array, right: Array, ends: Array, out: Array) -> None:
    """Multiply groups of matrices whose sizes depend on data; rows and columns that belong to no group become 0.

    Args:
        left, right: (m, k) and (groups, k, n) for groups of rows, (groups, m, k) and (k, n) for groups of columns, or
            (m, k) and (k, n) for column groups of the left side and rows of the right side.
        ends: the end of each group, (groups), in ascending order.
        out: (m, n), or (groups, m, n) in the third form.

    Raises:
        KernelError: the ends descend, or exceed the size.
    """
    size = len(left) if right.ndim == 3 else right.shape[1] if left.ndim == 3 else len(right)
    out.fill(0)
    start = 0
    for group, end in enumerate(ends.tolist()):
        if not start <= end <= size:
            raise KernelError(
                f"group {group} of {len(ends)} runs from {start} to {end}, but the size is {size}",
                remedy="check the offsets, which must ascend up to the size",
            )
        part, start = slice(start, end), end
        if part.start == part.stop:
            continue
        if right.ndim == 3:
            _multiply(left[part], right[group], out=out[part])
        elif left.ndim == 3:
            _multiply(left[group], right[:, part], out=out[:, part])
        else:
            _multiply(left[:, part], right[part], out=out[group])


@TABLE.kernel("aten._int_mm.default", dtypes={DType.int8, DType.uint8, DType.int32})
def int8_product(left: Array, right: Array, *, out: Array) -> None:
    """Multiply int8 or uint8 (M, K) by int8 (K, N) -> int32 in float32, which sums these products exactly."""
    wide = left.astype(np.float32)
    out.fill(0)
    for start in range(0, left.shape[1], _EXACT):
        part = slice(start, start + _EXACT)
        np.add(out, wide[:, part] @ right[part].astype(np.float32), out=out, casting="unsafe")


@TABLE.kernel("aten.matmul.default", dtypes=PRODUCT_DTYPES, whole=True)
def matmul(left: Array, right: Array, *, out: Array) -> None:
    """Multiply matrices of any ranks; if only the left side has batches, they are rows of one product."""
    if right.ndim == 2 and left.ndim > 2:
        rows = math.prod(left.shape[:-1])
        np.matmul(left.reshape(rows, left.shape[-1]), right, out=out.reshape(rows, right.shape[1], copy=False))
    else:
        np.matmul(left, right, out=out)


@TABLE.kernel("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default", dtypes=PRODUCT_DTYPES, whole=True)
def add_product(bias: Array, left: Array, right: Array, beta: Number, alpha: Number, *, out: Array) -> None:
    """Compute beta * bias + alpha * (left @ right)."""
    np.matmul(left, right, out=out)
    _add_scaled(bias, beta, alpha, out)


@TABLE.kernel("aten.addbmm.default", dtypes=PRODUCT_DTYPES)
def addbmm(bias: Array, left: Array, right: Array, beta: Number, alpha: Number, *, out: Array) -> None:
    """Compute beta * bias + alpha * sum over the batch of (left @ right)."""
    np.sum(np.matmul(left, right), axis=0, dtype=out.dtype, out=out)
    _add_scaled(bias, beta, alpha, out)


def _add_scaled(bias: Array, beta: Any, alpha: Any, out: Array) -> None:
    """Compute out = beta * bias + alpha * out, where a zero beta ignores the bias, even NaN.

    Integer factors truncate.
    """
    if out.dtype.kind in "iu":
        alpha, beta = cast(alpha, out.dtype), cast(beta, out.dtype)
    if alpha != 1:
        np.multiply(out, alpha, out=out, casting="unsafe")
    if beta == 1:
        np.add(out, bias, out=out)
    elif beta != 0:
        np.add(out, np.multiply(bias, beta), out=out, casting="unsafe")


def transpose(x: Array, conjugate: bool = False) -> Array:
    return np.conjugate(x.swapaxes(-1, -2)) if conjugate else x.swapaxes(-1, -2)


def solve(matrix: Array, right: Array, left: bool = True) -> Array:
    """Return X with matrix @ X = right, or X @ matrix = right."""
    if left:
        return np.linalg.solve(matrix, right)
    return transpose(np.linalg.solve(transpose(matrix), transpose(right)))


def solve_triangle(triangle: Array, right: Array, upper: bool) -> Array:
    """Return X with triangle @ X = right, in blocks of rows; NumPy itself would factor the matrix like any other."""
    batch = np.broadcast_shapes(triangle.shape[:-2], right.shape[:-2])
    solution = np.broadcast_to(right, (*batch, *right.shape[-2:])).copy()
    starts = range(0, triangle.shape[-1], _BLOCK)
    for start in reversed(starts) if upper else starts:
        rows = slice(start, start + _BLOCK)
        known = slice(start + _BLOCK, None) if upper else slice(start)
        solution[..., rows, :] -= triangle[..., rows, known] @ solution[..., known, :]
        solution[..., rows, :] = np.linalg.solve(triangle[..., rows, rows], solution[..., rows, :])
    return solution


# LU factorization, which NumPy lacks. Batches are (count, m, n).


def lu_factor(x: Array) -> tuple[Array, Array]:
    """Return L (below the diagonal, with unit diagonal) and U in one matrix, and the swap of each row, from 1."""
    work = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]).copy()
    steps = min(work.shape[1:])
    pivots = np.empty((len(work), steps), np.int32)
    for start in range(0, steps, _BLOCK):
        end = min(start + _BLOCK, steps)
        _factor_columns(work, pivots, start, end)
        lower, _ = triangles(work[:, start:, start:end])
        work[:, start:end, end:] = np.linalg.solve(lower[:, : end - start], work[:, start:end, end:])
        work[:, end:, end:] -= lower[:, end - start :] @ work[:, start:end, end:]
    return work.reshape(x.shape), pivots.reshape(*x.shape[:-2], steps)


def _factor_columns(work: Array, pivots: Array, start: int, end: int) -> None:
    """Factor some columns from the row `start` on; swaps the rows of all columns."""
    batch = np.arange(len(work))
    for k in range(start, end):
        column = work[:, k:, k]
        best = k + (np.abs(column.real) + np.abs(column.imag)).argmax(axis=1)
        pivots[:, k] = best + 1
        work[batch, k], work[batch, best] = work[batch, best], work[batch, k]
        pivot = work[:, k, k, None]
        work[:, k + 1 :, k] /= np.where(pivot == 0, 1, pivot)
        work[:, k + 1 :, k + 1 : end] -= work[:, k + 1 :, k, None] * work[:, k, None, k + 1 : end]


def triangles(factors: Array) -> tuple[Array, Array]:
    steps = min(factors.shape[-2:])
    lower = np.tril(factors[..., :, :steps], -1) + np.eye(factors.shape[-2], steps, dtype=factors.dtype)
    return lower, np.triu(factors[..., :steps, :])


@TABLE.kernel("aten.linalg_lu_factor_ex.default", dtypes=DTYPES)
def linalg_lu_factor_ex(x: Array, pivot: bool, check: bool, *, out: tuple[Array, Array, Array]) -> None:
    out[0][...], out[1][...] = lu_factor(x)
    out[2][...] = _zero_pivot(out[0])
    if check and out[2].any():
        raise np.linalg.LinAlgError("Singular matrix")


def _with_status(
    compute: Callable[[Array], Array], x: Array, check: bool, status: Callable[[Array], int]
) -> tuple[Array, Array]:
    """Return compute(x), and the status of each matrix: 0, or the value of `status` where the computation fails."""
    statuses = np.zeros(x.shape[:-2], np.int32)
    try:
        return compute(x), statuses
    except np.linalg.LinAlgError:
        if check:
            raise
    for place in np.ndindex(statuses.shape):
        if _fails(compute, x[place]):
            statuses[place] = status(x[place])
    failed = statuses[..., None, None] != 0
    return np.where(failed, np.nan, compute(np.where(failed, np.eye(x.shape[-1], dtype=x.dtype), x))), statuses


def _fails(compute: Callable[[Array], Array], matrix: Array) -> bool:
    try:
        compute(matrix)
    except np.linalg.LinAlgError:
        return True
    return False


def _zero_pivot(factors: Array) -> Array:
    """Return the number of the first pivot of each matrix that is zero, from 1; 0 if there is none."""
    zeros = raw.diagonal(factors, 0, -2, -1) == 0
    return np.where(zeros.any(axis=-1), zeros.argmax(axis=-1) + 1 if zeros.shape[-1] else 0, 0)


def _singular(matrix: Array) -> int:
    """Return the number of the first zero pivot; LAPACK may round to zero what `lu_factor` does not: only the last."""
    return int(_zero_pivot(lu_factor(matrix)[0])) or matrix.shape[-1]


def _failing_minor(factor: Callable[[Array], Array], matrix: Array) -> int:
    """Return the size of the smallest leading minor that is not positive definite."""
    return next(size for size in range(1, matrix.shape[-1] + 1) if _fails(factor, matrix[:size, :size]))


@TABLE.kernel("aten._linalg_solve_ex.default", dtypes=DTYPES)
def linalg_solve_ex(x: Array, right: Array, left: bool, check: bool, *, out: tuple[Array, Array, Array, Array]) -> None:
    """Solve for right (..., n, k), or (..., n) for one column; the other results as in `linalg_det`."""
    vector = right.ndim == 1 or (right.ndim == x.ndim - 1 and right.shape == x.shape[:-1])
    columns = right[..., None] if vector else right
    solution, out[3][...] = _with_status(lambda m: solve(m, columns, left or vector), x, check, _singular)
    out[0][...] = solution[..., 0] if vector else solution
    out[1][...], out[2][...] = lu_factor(x)


@TABLE.kernel("aten.linalg_inv_ex.default", dtypes=DTYPES)
def linalg_inv_ex(x: Array, check: bool, *, out: tuple[Array, Array]) -> None:
    out[0][...], out[1][...] = _with_status(np.linalg.inv, x, check, _singular)


@TABLE.kernel("aten.linalg_cholesky_ex.default", dtypes=DTYPES)
def linalg_cholesky_ex(x: Array, upper: bool, check: bool, *, out: tuple[Array, Array]) -> None:
    factor = partial(_cholesky, upper=upper)
    out[0][...], out[1][...] = _with_status(factor, x, check, partial(_failing_minor, factor))


@TABLE.kernel("aten.cholesky.default", dtypes=FLOATS)
def cholesky(x: Array, upper: bool, *, out: Array) -> None:
    """Compute the triangular factor of a positive definite matrix, of which only one triangle is read."""
    out[...] = _cholesky(x, upper)


def _cholesky(x: Array, upper: bool) -> Array:
    """Return the factor; raise LinAlgError for NaN too, as torch does."""
    factor = np.linalg.cholesky(x, upper=upper)
    if np.isnan(raw.diagonal(factor, 0, -2, -1)).any():
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return factor


@TABLE.kernel("aten.linalg_solve_triangular.default", dtypes=FLOATS)
def linalg_solve_triangular(
    x: Array, right: Array, upper: bool, left: bool, unitriangular: bool, *, out: Array
) -> None:
    triangle = triangle_of(x, upper, unitriangular)
    if left:
        out[...] = solve_triangle(triangle, right, upper)
    else:
        out[...] = transpose(solve_triangle(transpose(triangle), transpose(right), not upper))


def triangle_of(x: Array, upper: bool, unitriangular: bool) -> Array:
    triangle = np.triu(x, int(unitriangular)) if upper else np.tril(x, -int(unitriangular))
    return triangle + np.eye(x.shape[-1], dtype=x.dtype) if unitriangular else triangle


def require_finite(x: Array) -> None:
    """Raise KernelError for infinities or NaN, as torch does: LAPACK may never finish on such a matrix."""
    if not np.isfinite(x).all():
        raise KernelError("the matrix contains infinities or NaN", remedy="pass a matrix of finite numbers")


@TABLE.kernel("aten._linalg_eigh.default", dtypes=FLOATS)
def linalg_eigh(x: Array, triangle: str, vectors: bool, *, out: tuple[Array, Array]) -> None:
    """Compute eigenvalues in ascending order and the vectors as columns, each unique up to its sign or phase."""
    side: Literal["L", "U"] = "U" if triangle.upper() == "U" else "L"
    require_finite(x)
    if vectors:
        out[0][...], out[1][...] = np.linalg.eigh(x, side)
    else:
        out[0][...] = np.linalg.eigvalsh(x, side)
        out[1].fill(0)


@TABLE.kernel("aten.linalg_qr.default", dtypes=FLOATS)
def linalg_qr(x: Array, mode: str, *, out: tuple[Array, Array]) -> None:
    """Factor in mode "reduced", "complete" or "r"; for "r", Q is empty."""
    if mode == "r":
        out[1][...] = np.linalg.qr(x, mode="r")
    else:
        out[0][...], out[1][...] = np.linalg.qr(x, mode="complete" if mode == "complete" else "reduced")


@TABLE.kernel("aten.linalg_eig.default", dtypes=FLOATS)
def linalg_eig(x: Array, *, out: tuple[Array, Array]) -> None:
    """Compute complex eigenvalues in any order and the vectors as columns."""
    require_finite(x)
    out[0][...], out[1][...] = np.linalg.eig(x)


@TABLE.kernel("aten._linalg_svd.default", dtypes=FLOATS)
def linalg_svd(x: Array, full: bool, vectors: bool, _driver: str | None, *, out: tuple[Array, Array, Array]) -> None:
    """Compute U, the singular values in descending order, and V, conjugated and transposed."""
    require_finite(x)
    if vectors:
        out[0][...], out[1][...], out[2][...] = np.linalg.svd(x, full_matrices=full)
    else:
        out[1][...] = np.linalg.svd(x, compute_uv=False)
        out[0].fill(0)
        out[2].fill(0)


@TABLE.kernel("delegate.low_rank_product.default", dtypes={DType.float32, DType.float64, DType.int64})
def _low_rank_product(x: Array, first: Array, second: Array, ranks: Array, rows: Array, *, out: Array) -> None:
    """Multiply x (T, ..., E) with first (R, M, E) and second (R, M, V) of rows (T), up to ranks (R).

    The result is (T, ..., V), where adjacent tokens of one row are one product. Nothing is read for rows of rank 0.
    """
    chosen, used = rows.tolist(), ranks.tolist()
    _check_ranks(chosen, used, x, first, second)
    end = 0
    for row, run in groupby(chosen):
        start, end = end, end + len([*run])
        rank = used[row]
        if rank == 0:
            out[start:end] = 0
            continue
        inner = np.matmul(x[start:end].reshape(-1, x.shape[-1]), first[row, :rank].T)
        out[start:end] = np.matmul(inner, second[row, :rank]).reshape(out[start:end].shape)


def _check_ranks(rows: list[int], ranks: list[int], x: Array, first: Array, second: Array) -> None:
    """Raise KernelError if rows, ranks and sizes do not fit together."""
    conversations, most = first.shape[:2]
    if first.shape[2] != x.shape[-1] or second.shape[:2] != first.shape[:2]:
        problem = f"matrices of shapes {first.shape} and {second.shape} for {x.shape[-1]} inputs"
    elif len(ranks) != conversations or any(not 0 <= rank <= most for rank in ranks):
        problem = f"ranks {ranks} for {conversations} matrices of at most {most}"
    elif len(rows) != len(x) or any(not 0 <= row < conversations for row in rows):
        problem = f"rows {rows} of {len(x)} tokens for {conversations} matrices"
    else:
        return
    raise KernelError(problem, remedy="pass two matrices and a rank of each conversation, and a row of each token")


@TABLE.kernel("aten._trilinear.default", dtypes=PRODUCT_DTYPES)
def trilinear(
    first: Array,
    second: Array,
    third: Array,
    new_first: Sequence[int],
    new_second: Sequence[int],
    new_third: Sequence[int],
    summed: Sequence[int],
    _unrolled: int,
    *,
    out: Array,
) -> None:
    """Multiply three tensors, each with new dimensions of size 1, and sum over some dimensions."""
    rank = first.ndim + len(new_first)
    operands: list[Any] = []
    for x, new in ((first, new_first), (second, new_second), (third, new_third)):
        operands += [x, [d for d in range(rank) if d not in new]]
    out[...] = np.einsum(*operands, [d for d in range(rank) if d not in summed], optimize=True).reshape(out.shape)
