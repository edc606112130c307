"""Attention on the real libraries: masks of any kind, rows masked completely, causal, grouped heads, scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.availability import require
from tests.support.lowering import compiled, relative_error

BATCH, HEADS, ROWS, COLUMNS, SIZE = 2, 4, 5, 7, 8
TOLERANCE = {"dsp": 5e-3, "webgpu": 1e-5}


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


QUERY, KEY, VALUE = _draw(BATCH, HEADS, ROWS, SIZE), _draw(BATCH, HEADS, COLUMNS, SIZE), _draw(BATCH, 4, COLUMNS, SIZE)
MASK = _draw(BATCH, 1, ROWS, COLUMNS) > -0.5
MASK[0, 0, 2] = False  # torch gives 0 for a row that may look nowhere
BIAS = _draw(BATCH, 1, ROWS, COLUMNS) * 2
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": -0.3},
    "bool mask": {"attn_mask": MASK},
    "mask of one batch": {"attn_mask": MASK[0, 0]},
    "float mask": {"attn_mask": BIAS.masked_fill(~MASK, float("-inf"))},
    "lowest number": {"attn_mask": torch.zeros(ROWS, COLUMNS).masked_fill(~MASK[1, 0], torch.finfo(torch.float32).min)},
    "causal": {"is_causal": True},
    "grouped": {"enable_gqa": True, "attn_mask": MASK.clone()},
    "grouped, causal": {"enable_gqa": True, "is_causal": True},
}


class All(nn.Module):
    """Every case, one after the other; masks are inputs."""

    def forward(self, q, k, v, masks):
        results = []
        for name, options in CASES.items():
            heads = slice(0, HEADS // 2 if options.get("enable_gqa") else HEADS)
            given = {**options, **({"attn_mask": masks[name]} if name in masks else {})}
            results.append(F.scaled_dot_product_attention(q, k[:, heads], v[:, heads], **given))
        return (*results, F.scaled_dot_product_attention(q[0], k[0], v[0]))


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["dsp", "webgpu"])
def test_attention(backend):
    require(backend)
    masks = {name: options["attn_mask"] for name, options in CASES.items() if "attn_mask" in options}
    given = (QUERY, KEY, VALUE, masks)
    program = compiled(All(), given, backends=backend)
    assert [p.backend for p in program.report.partitions] == [backend]
    errors = [relative_error(a, e) for a, e in zip(program(*given), All()(*given), strict=True)]
    wrong = {n: e for n, e in zip((*CASES, "3 dimensions"), errors, strict=True) if e > TOLERANCE[backend]}
    assert not wrong
