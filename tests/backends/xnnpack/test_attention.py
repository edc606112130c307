"""Attention and masks against eager: options, masked rows, grouped heads, layouts, masks of run time, whole models."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention as attention

import delegate
from delegate.testing import assert_same
from tests.backends.xnnpack.harness import assert_as_eager, lower, run
from tests.support.functions import Function
from tests.support.lowering import assert_runs
from tests.support.sampling import every

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


KEYS = torch.tensor([[True, True, False, True, False], [True, False, False, False, False]])[:, None, None]
EACH = torch.rand(2, 4, 6, 5) > 0.5
EACH[..., 0] = True


def by_hand(mask_scores):
    """Attention written as single operators."""

    def attend(q, k, v, mask):
        return mask_scores(q @ k.mT / 3 + 1, mask).softmax(-1) @ v

    return Function(attend)


FILLS = {
    "infinity": lambda s, m: s.masked_fill(~m, -torch.inf),
    "lowest": lambda s, m: s.masked_fill(~m, torch.finfo(torch.float32).min),
    "number": lambda s, m: s.masked_fill(~m, -1e4),
    "where": lambda s, m: torch.where(m, s, -1e9),
    "where_not": lambda s, m: torch.where(m.logical_not(), -torch.inf, s),
    "twice": lambda s, m: s.masked_fill(~m, -1e4).masked_fill(~m[..., :1, :], -torch.inf),
}


@pytest.mark.parametrize("mask", [KEYS, EACH], ids=["keys", "each"])
@pytest.mark.parametrize("name", FILLS)
def test_masked_scores(name, mask):
    program = delegate.to_backend(torch.export.export(by_hand(FILLS[name]), (Q, K, V, mask)), "xnnpack")
    assert len(program.report.partitions) == 1
    assert_same(program(Q, K, V, mask), by_hand(FILLS[name])(Q, K, V, mask))


def test_scores_that_are_infinite():
    """Check that unmasked elements keep their infinities, and masked ones lose them."""
    k = K.clone()
    k[0, :, 2] = torch.inf  # masked
    program = delegate.to_backend(torch.export.export(by_hand(FILLS["infinity"]), (Q.abs(), k, V, KEYS)), "xnnpack")
    assert_runs(program, "xnnpack", {"aten.bitwise_not.default": 1})
    assert_same(program(Q.abs(), k, V, KEYS), by_hand(FILLS["infinity"])(Q.abs(), k, V, KEYS))


def test_product_with_a_mask():
    run(Function(lambda x, m: (x * m, m * x.neg())), (Q, EACH[..., :1]), 0, 0)


class Encoder(nn.Module):
    """Layers that attend with one mask of keys."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 96) for _ in range(layers)])

    def forward(self, x, mask):
        for layer in self.layers:
            heads = layer(x).view(x.shape[0], x.shape[1], 4, 24).transpose(1, 2)
            q, k, v = heads.chunk(3, -1)
            y = nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
            x = x + y.transpose(1, 2).flatten(2)
        return x


@pytest.mark.extended
def test_encoder_of_dynamic_batch_and_length_is_one_partition(tmp_path):
    sizes = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=2, max=64)}
    module = Encoder(12).eval()
    x, mask = torch.randn(2, 16, 32), torch.rand(2, 16) > 0.3
    program = delegate.to_backend(torch.export.export(module, (x, mask), dynamic_shapes=(sizes, sizes)), "xnnpack")
    assert len(program.report.partitions) == 1
    program.save(tmp_path / "encoder.dlg")
    with delegate.load(tmp_path / "encoder.dlg") as loaded, torch.no_grad():
        for shape in ((2, 16), (1, 2), (5, 33), (8, 64)):
            x, mask = torch.randn(*shape, 32), torch.rand(shape) > 0.3
            mask[0] = False  # nothing to attend to
            expected = module(x, mask)
            assert_same(program(x, mask), expected)
            assert_same(loaded(x, mask), expected)


class Decoded(nn.Module):
    """torch's own layers over a memory with padding: heads are joined with the batch, and the memory comes second."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(32, 4, 64, batch_first=True)
        self.layers = nn.TransformerDecoder(layer, 2)

    def forward(self, x, mask):
        return self.layers(x, x * 2, memory_key_padding_mask=~mask)


class Joined(nn.Module):
    """Products of matrices over batch and heads as one, as DeBERTa has them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 96)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        heads = self.inner(x).view(batch, length, 4, 24).transpose(1, 2).chunk(3, -1)
        q, k, v = (part.reshape(batch * 4, length, 8) for part in heads)
        scores = torch.bmm(q, k.transpose(1, 2) / torch.tensor(8.0)).view(batch, 4, length, length)
        scores = scores.masked_fill(~mask[:, None, None], -1e4).softmax(-1)
        return torch.bmm(scores.view(batch * 4, length, length), v).view(batch, 4, length, 8).transpose(1, 2)


@pytest.mark.parametrize("build", every(2, [Joined, Decoded]))
def test_heads_that_are_joined_with_a_dynamic_batch_are_one_partition(build):
    sizes = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=2, max=64)}
    torch.manual_seed(0)
    module = build().eval()
    x, mask = torch.randn(2, 16, 32), torch.rand(2, 16) > 0.3
    program = delegate.to_backend(torch.export.export(module, (x, mask), dynamic_shapes=(sizes, sizes)), "xnnpack")
    assert len(program.report.partitions) == 1
    for shape in ((2, 16), (1, 2), (5, 33)):
        x, mask = torch.randn(*shape, 32), torch.rand(shape) > 0.3
        mask[:, 0] = True
        assert_same(program(x, mask), module(x, mask))
