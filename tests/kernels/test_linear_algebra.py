"""Factorizations: the product is the matrix again; unique results equal torch's."""

import numpy as np
import pytest
import torch

from delegate.testing import assert_same
from tests.support.kernels import check, run, sample

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.complex64]
SHAPES = [(4, 4), (2, 3, 5), (5, 3), (0, 3, 3), (2, 0, 0)]


def close(actual, expected):
    assert_same(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("full", [True, False])
def test_singular_values(shape, dtype, full):
    x = sample(*shape, dtype=dtype)
    u, s, v = run(aten._linalg_svd.default, x, full, True, expected=aten._linalg_svd(x, full, True))
    close(s, torch.linalg.svdvals(x))
    k = s.shape[-1]
    close((u[..., :k] * s.unsqueeze(-2)) @ v[..., :k, :], x)
    close(u.mH @ u, torch.eye(u.shape[-1], dtype=dtype).expand(*shape[:-2], -1, -1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigenvectors(dtype, triangle):
    x = sample(3, 4, 4, dtype=dtype)
    values, vectors = run(aten._linalg_eigh.default, x, triangle, expected=aten._linalg_eigh(x, triangle))
    half = torch.tril(x, -1) if triangle == "L" else torch.triu(x, 1)
    whole = half + half.mH + torch.diag_embed(x.diagonal(dim1=-2, dim2=-1).real).to(dtype)
    close((vectors * values.unsqueeze(-2)) @ vectors.mH, whole)
    check(aten._linalg_eigh.default, x, triangle, False, rtol=4e-6, atol=4e-6)


def test_a_singular_matrix_has_factors():
    check(aten.linalg_lu_factor_ex.default, torch.tensor([[1.0, 2.0], [2.0, 4.0]]))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_solutions(dtype, left):
    x, right = sample(2, 4, 4, dtype=dtype), sample(2, 4, 4, dtype=dtype, seed=1)
    expected = aten._linalg_solve_ex(x, right, left=left)
    solution, *_ = run(aten._linalg_solve_ex.default, x, right, left=left, expected=expected)
    close(x @ solution if left else solution @ x, right)
    for upper in (True, False):
        for unit in (True, False):
            options = {"upper": upper, "left": left, "unitriangular": unit}
            check(aten.linalg_solve_triangular.default, x, right, **options, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_than_one_block(dtype):
    """Use more triangular rows than a block, and broadcast batches."""
    x = sample(2, 70, 70, dtype=dtype) / 70 + torch.eye(70)
    for right in (sample(70, 3, dtype=dtype), sample(3, 1, 70, 2, dtype=dtype), sample(2, 70, 0, dtype=dtype)):
        for upper in (True, False):
            for unit in (True, False):
                options = {"upper": upper, "unitriangular": unit}
                check(aten.linalg_solve_triangular.default, x, right, **options, rtol=5e-6, atol=5e-6)
                other = right.mT.contiguous()
                check(aten.linalg_solve_triangular.default, x, other, left=False, **options, rtol=5e-6, atol=5e-6)


def test_cholesky():
    x = sample(2, 40, 40) / 40
    x = x @ x.mT + torch.eye(40)
    for upper in (True, False):
        check(aten.linalg_cholesky_ex.default, x, upper=upper, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(mode):
    check(aten.linalg_qr.default, sample(2, 5, 3), mode, rtol=4e-6, atol=4e-6)


def test_inverses():
    check(aten.linalg_inv_ex.default, sample(2, 4, 4, dtype=torch.float64), rtol=1e-6, atol=1e-6)


SINGULAR, NEGATIVE = torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.tensor([[4.0, 1.0], [1.0, -3.0]])
REGULAR = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
BATCH = torch.stack([SINGULAR, REGULAR, torch.zeros(2, 2), NEGATIVE, -REGULAR, REGULAR * torch.nan]).reshape(2, 3, 2, 2)
WITH_STATUS = {
    "inverse": (aten.linalg_inv_ex.default, lambda x: ()),
    "solution": (aten._linalg_solve_ex.default, lambda x: (x + 1,)),
    "solution of a vector": (aten._linalg_solve_ex.default, lambda x: (x[..., 0],)),
    "factors": (aten.linalg_lu_factor_ex.default, lambda x: ()),
    "root": (aten.linalg_cholesky_ex.default, lambda x: ()),
}


@pytest.mark.parametrize("name", WITH_STATUS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("x", [BATCH, SINGULAR, NEGATIVE, REGULAR, BATCH[:0]], ids=lambda x: f"{x.tolist()}")
def test_statuses_are_those_of_torch(x, dtype, name):
    """Matrices that have no result do not change the others; with `check_errors` they are an error."""
    operator, others = WITH_STATUS[name]
    arguments = [x.to(dtype), *others(x.to(dtype))]
    expected = operator(*arguments)
    results = run(operator, *arguments, expected=expected)
    assert torch.equal(results[-1], expected[-1])
    has_result = expected[-1] == 0
    assert_same(results[0][has_result], expected[0][has_result], 4e-6)
    if has_result.all():
        run(operator, *arguments, check_errors=True, expected=expected)
        return
    with pytest.raises(RuntimeError):
        operator(*arguments, check_errors=True)
    with pytest.raises(np.linalg.LinAlgError):
        run(operator, *arguments, check_errors=True, expected=expected)
