"""Scaled dot-product attention against eager: masks, rows without any key, grouped heads, layouts, dynamic lengths."""

import pytest
import torch
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention as attention

from tests.backends.xnnpack.harness import assert_as_eager, lower, run
from tests.support.functions import Function

torch.manual_seed(0)
Q, K, V = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 3)
BOOLS = torch.rand(6, 5) > 0.4
BOOLS[:, 0] = True
DEAD = BOOLS.clone()
DEAD[2] = False
OP = "aten.scaled_dot_product_attention.default"
LOWEST = torch.finfo(torch.float32).min


class Masked(torch.nn.Module):
    """Attention with a mask that is known ahead of time."""

    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, q, k, v):
        return attention(q, k, v, self.mask)


def additive(mask: torch.Tensor, value: float = -torch.inf) -> torch.Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, value)


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"scale": 1.0}, {"is_causal": True}], ids=str)
def test_options(options):
    assert run(Function(attention, **options), (Q, K, V), 1e-5, 2e-6).transposes == 0


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_ranks(rank):
    shapes = [(2,) * (rank - 2) + t.shape[-2:] for t in (Q, K, V)]
    run(Function(attention), tuple(torch.randn(s) for s in shapes), 1e-5, 2e-6)


MASKS = {
    "bool": BOOLS,
    "float": torch.randn(6, 5),
    "infinite": additive(BOOLS),
    "row_without_any": DEAD,
    "row_of_infinities": additive(DEAD),
    "row_of_lowest": additive(DEAD, LOWEST),
    "per_batch": torch.randn(2, 1, 1, 5),
    "per_head": torch.randn(4, 6, 5),
    "bool_of_keys": DEAD[2:4, None, None, :],
    "bool_of_each": torch.rand(2, 4, 6, 5) > 0.5,
}


@pytest.mark.parametrize("name", MASKS)
def test_constant_mask(name):
    run(Masked(MASKS[name]), (Q, K, V), 1e-5, 2e-6)


@pytest.mark.parametrize("name", MASKS)
def test_computed_mask(name):
    run(Function(attention), (Q, K, V, MASKS[name]), 1e-5, 2e-6)


def test_projections_in_batch_length_heads_layout():
    """Check typical models: one transpose each of query, key, value and result."""
    heads = Function(
        lambda q, k, v: attention(*(t.view(2, 7, 4, 8).transpose(1, 2) for t in (q, k, v))).transpose(1, 2).flatten(2)
    )
    assert run(heads, tuple(torch.randn(2, 7, 32) for _ in range(3)), 1e-5, 2e-6).transposes == 4


def test_key_that_lies_by_columns_is_not_transposed():
    function = Function(lambda q, k, v: attention(q, k.transpose(-1, -2), v.transpose(-1, -2)))
    assert run(function, (Q, K.mT.contiguous(), V.mT.contiguous()), 1e-5, 2e-6).transposes == 0


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": BOOLS}], ids=list)
def test_grouped_heads(options):
    k, v = K[:, :2].contiguous(), V[:, :2].contiguous()
    run(Function(attention, enable_gqa=True, **options), (Q, k, v), 1e-5, 2e-6)


@pytest.mark.parametrize("dims", [{0: Dim("n", min=2, max=64)}, {2: Dim("t", min=2, max=64)}], ids=["batch", "length"])
def test_dynamic(dims):
    lowered = lower(Function(attention), (Q, Q.clone(), Q.clone()), ((dims, dims, dims),))
    for size in (2, 9):
        shape = [size if d in dims else s for d, s in enumerate(Q.shape)]
        assert_as_eager(Function(attention), tuple(torch.randn(shape) for _ in range(3)), lowered, 1e-5, 2e-6)
