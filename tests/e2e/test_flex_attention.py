"""torch's flex_attention: scores changed by functions of their places, masks, grouped heads, rows without any key."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import delegate
from tests.support.lowering import assert_runs, assert_same
from tests.support.sampling import every

BIAS = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Attention over 16 places."""

    def __init__(self, heads=4, change=None, mask=None):
        super().__init__()
        self.heads, self.change, self.mask = heads, change, mask
        self.register_buffer("bias", BIAS)
        self.inner = nn.Linear(32, 32 + 16 * heads)

    def forward(self, x):
        sizes = [32, 8 * self.heads, 8 * self.heads]
        q, k, v = (p.unflatten(-1, (-1, 8)).transpose(1, 2) for p in self.inner(x).split(sizes, -1))
        change = None if self.change is None else lambda s, b, h, i, j: self.change(self, s, b, h, i, j)
        mask = None if self.mask is None else create_block_mask(self.mask, None, None, 16, 16, device="cpu")
        return flex_attention(q, k, v, score_mod=change, block_mask=mask, enable_gqa=self.heads != 4)


CASES = {
    "plain": Attention,
    "grouped": lambda: Attention(heads=2),
    "distance": lambda: Attention(change=lambda m, s, b, h, i, j: s + (j - i) * 0.1 * (h + 1)),
    "table": lambda: Attention(change=lambda m, s, b, h, i, j: s * 2 + m.bias[h, j]),
    "capped": lambda: Attention(change=lambda m, s, b, h, i, j: torch.where(i >= j, torch.tanh(s) * 3, -torch.inf)),
    "causal": lambda: Attention(mask=lambda b, h, i, j: i >= j),
    "rows without any": lambda: Attention(mask=lambda b, h, i, j: (i > 3) & (j < 9)),
}


# What finds rows without any key, whose results are zeros.
ROWS_WITHOUT_KEYS = {
    "aten.eq.Scalar": 1, "aten.logical_not.default": 2, "aten.any.dim": 1, "aten.full_like.default": 1,
    "aten.where.self": 1,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", every(4, CASES))
def test_as_eager(name, tmp_path):
    torch.manual_seed(0)
    module, x = CASES[name]().eval().requires_grad_(False), torch.randn(2, 16, 32)
    exported = torch.export.export(module, (x,))
    for backends in ([], "xnnpack"):
        program = delegate.to_backend(exported, backends)
        if backends:
            assert_runs(program, "xnnpack", ROWS_WITHOUT_KEYS)
        program.save(tmp_path / "flex.dlg")
        with delegate.load(tmp_path / "flex.dlg") as loaded:
            assert_same(loaded(x), module(x))
