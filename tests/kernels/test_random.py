"""Random kernels: shape, dtype, range, moments, and the same numbers from the same seed."""

import math

import numpy as np
import pytest
import torch

from delegate.kernels.portable import TABLE
from delegate.kernels.table import KernelTable
from delegate.testing import assert_same
from tests.support.kernels import run, sample

aten = torch.ops.aten
SIZE = [100, 200]
UNIFORM, NORMAL = (0.5, 1 / 12**0.5), (0.0, 1.0)
RANDOM = [
    (aten.rand.default, (SIZE,), {}, UNIFORM),
    (aten.rand.default, (SIZE,), {"dtype": torch.bfloat16}, UNIFORM),
    (aten.rand_like.default, (sample(*SIZE),), {}, UNIFORM),
    (aten.randn.default, (SIZE,), {}, NORMAL),
    (aten.randn.default, (SIZE,), {"dtype": torch.float64}, NORMAL),
    (aten.randn_like.default, (sample(*SIZE),), {}, NORMAL),
    (aten.randint.default, (11, SIZE), {}, (5.0, 10**0.5)),
    (aten.randint.low, (-5, 6, SIZE), {}, (0.0, 10**0.5)),
    (aten.uniform.default, (sample(*SIZE), 2.0, 4.0), {}, (3.0, 2 / 12**0.5)),
    (aten.normal.float_float, (3.0, 2.0, SIZE), {}, (3.0, 2.0)),
    (aten.normal.Tensor_float, (torch.full(SIZE, 3.0), 2.0), {}, (3.0, 2.0)),
    (aten.bernoulli.p, (sample(*SIZE), 0.5), {}, (0.5, 0.5)),
    (aten.bernoulli.Tensor, (sample(*SIZE), torch.tensor(0.5)), {}, (0.5, 0.5)),
    (aten.randperm.default, (11,), {}, (5.0, 11**0.5)),
    (aten.rand.default, (SIZE,), {"dtype": torch.float16}, UNIFORM),
    (aten.randn.default, (SIZE,), {"dtype": torch.complex64}, NORMAL),
    (aten.randint_like.default, (sample(*SIZE, dtype=torch.int64), 11), {}, (5.0, 10**0.5)),
    (aten.normal_functional.default, (sample(*SIZE), 3.0, 2.0), {}, (3.0, 2.0)),
    (aten.exponential.default, (sample(*SIZE), 2.0), {}, (0.5, 0.5)),
    (aten.native_dropout.default, (torch.ones(SIZE), 0.25, True), {}, (1.0, (1 / 3) ** 0.5)),
]


@pytest.mark.parametrize("case", RANDOM, ids=lambda c: str(c[0]))
def test_random(case):
    op, args, kwargs, (mean, deviation) = case
    expected = op(*args, **kwargs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    TABLE.seed(0)
    first, *_ = run(op, *args, expected=expected, **kwargs)
    second, *_ = run(op, *args, expected=expected, **kwargs)
    TABLE.seed(0)
    again, *_ = run(op, *args, expected=expected, **kwargs)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert (first.shape, first.dtype) == (expected[0].shape, expected[0].dtype)
    wide = first.to(torch.complex128 if first.is_complex() else torch.float64)
    assert wide.mean().item() == pytest.approx(mean, abs=0.05 * deviation)
    assert wide.std().item() == pytest.approx(deviation, rel=0.05)


LOW_HIGH = [
    (aten.rand.default, (SIZE,), {}, (0, 1)),
    (aten.rand.default, (SIZE,), {"dtype": torch.float16}, (0, 1)),
    (aten.rand.default, (SIZE,), {"dtype": torch.bfloat16}, (0, 1)),
    (aten.randint.low, (-5, 6, SIZE), {}, (-5, 6)),
    (aten.randint.low, (250, 256, SIZE), {"dtype": torch.uint8}, (250, 256)),
    (aten.uniform.default, (sample(*SIZE), 2.0, 4.0), {}, (2, 4)),
    (aten.exponential.default, (sample(*SIZE), 2.0), {}, (0, math.inf)),
]


@pytest.mark.parametrize("case", LOW_HIGH, ids=lambda c: f"{c[0]}-{c[2]}")
def test_range(case):
    """Check that the lower end may occur and the upper end may not."""
    op, args, kwargs, (low, high) = case
    (result,) = run(op, *args, expected=(op(*args, **kwargs),), **kwargs)
    assert low <= result.double().min()
    assert result.double().max() < high


def test_permutation():
    (result,) = run(aten.randperm.default, 100, expected=(torch.randperm(100),))
    assert sorted(result.tolist()) == list(range(100))


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_dropout(p):
    """Check that the remaining elements are scaled, and that the mask marks them."""
    x = sample(50, 40)
    result, mask = run(aten.native_dropout.default, x, p, True, expected=aten.native_dropout(x, p, True))
    assert mask.double().mean().item() == pytest.approx(1 - p, abs=0.05)
    assert_same(result, x * mask / (1 - p) if p < 1 else torch.zeros_like(x))


def test_no_replacement():
    weights = torch.tensor([0.0, 1.0, 3.0, 2.0])
    (result,) = run(aten.multinomial.default, weights, 3, False, expected=(torch.multinomial(weights, 3),))
    assert sorted(result.tolist()) == [1, 2, 3]


def test_multinomial():
    weights = torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]])
    (result,) = run(
        aten.multinomial.default, weights, 400, True, expected=(aten.multinomial.default(weights, 400, True),)
    )
    assert set(result[0].tolist()) == {1, 2}
    assert result[0].float().mean().item() == pytest.approx(1.75, abs=0.1)
    assert not result[1].any()


def test_tables_have_generators_of_their_own():
    one, other = KernelTable("one"), KernelTable("other")
    one.seed(1)
    other.seed(1)
    assert one.generator is one.generator
    assert np.array_equal(one.generator.random(3), other.generator.random(3))
