"""Functions of matrices: the product of factors is the matrix again; unique results equal torch's."""

from __future__ import annotations

import pytest
import torch

from delegate.testing import assert_same
from tests.support.kernels import check, run, sample

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.complex64]
SHAPES = [(4, 4), (2, 3, 5), (5, 3), (0, 3, 3), (2, 0, 0)]
BLOCKS = [(100, 70), (40, 90), (2, 33, 33), (65, 64), (0, 40, 40), (3, 0, 5), (31, 1)]  # of more columns than a block
CLOSE = {"rtol": 5e-6, "atol": 5e-6}


def require_factors(x: torch.Tensor) -> None:
    p, lower, upper = run(aten.linalg_lu.default, x, expected=aten.linalg_lu(x))
    assert lower is not None
    assert_same(p @ lower @ upper, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES + BLOCKS, ids=str)
def test_lu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    require_factors(sample(*shape, dtype=dtype))


def test_singular_matrices_beyond_a_block_have_factors() -> None:
    x = sample(70, 20) @ sample(20, 70, seed=1)
    x[:, 40] = x[3] = 0
    require_factors(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_solutions_by_factors(dtype: torch.dtype) -> None:
    x, right = sample(2, 4, 4, dtype=dtype), sample(2, 4, 3, dtype=dtype, seed=1)
    factors, pivots = torch.linalg.lu_factor(x)
    check(aten.linalg_lu_solve.default, factors, pivots, right, rtol=1e-4, atol=1e-4)
    check(aten.lu_unpack.default, factors, pivots)
    x = sample(2, 70, 70, dtype=dtype) / 70 + torch.eye(70)
    for flags in range(8):
        options = {"upper": bool(flags & 1), "transpose": bool(flags & 2), "unitriangular": bool(flags & 4)}
        check(aten.triangular_solve.default, sample(2, 70, 3, dtype=dtype), x, **options, **CLOSE)


@pytest.mark.parametrize("upper", [True, False])
def test_solutions_by_roots(upper: bool) -> None:
    x = sample(2, 40, 40) / 40
    factor = torch.linalg.cholesky(x @ x.mT + torch.eye(40), upper=upper)
    check(aten.cholesky_solve.default, sample(2, 40, 3), factor, upper, **CLOSE)
    check(aten.cholesky_inverse.default, factor, upper, **CLOSE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_determinants(dtype: torch.dtype) -> None:
    x = sample(3, 4, 4, dtype=dtype)
    det, *_ = run(aten._linalg_det.default, x, expected=aten._linalg_det(x))
    sign, log, *_ = run(aten._linalg_slogdet.default, x, expected=aten._linalg_slogdet(x))
    assert log is not None
    assert_same(det, torch.linalg.det(x))
    assert_same(sign * log.exp(), det)


def test_pseudoinverses_and_exponentials() -> None:
    x = sample(2, 4, 4, dtype=torch.float64)
    check(aten.linalg_matrix_exp.default, x, rtol=1e-6, atol=1e-6)
    check(aten.linalg_pinv.atol_rtol_tensor, x[..., :3], rtol=1e-6, atol=1e-6)
