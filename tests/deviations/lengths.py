"""Reductions of many elements: how far sums in float32 are from the exact ones, by length and offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "aten.sum.dim_IntList": lambda x: x.sum(-1),
    "aten.sum.default": lambda x: x.sum(),
    "aten.mean.dim": lambda x: x.mean(-1),
    "aten.mean.default": lambda x: x.mean(),
    "aten.var.correction": lambda x: x.var(-1),
    "aten.std.correction": lambda x: x.std(-1),
    "aten.var_mean.correction": lambda x: torch.var_mean(x, -1),
    "aten.linalg_vector_norm.default": lambda x: torch.linalg.vector_norm(x, 2, -1),
    "aten.linalg_vector_norm.default, 1": lambda x: torch.linalg.vector_norm(x, 1, -1),
    "aten.amax.default": lambda x: x.amax(-1),
    "aten.argmax.default": lambda x: x.argmax(-1),
    "aten.logsumexp.default": lambda x: x.logsumexp(-1),
    "aten._softmax.default": lambda x: x.softmax(-1),
    "aten._log_softmax.default": lambda x: x.log_softmax(-1),
    "aten.cumsum.default": lambda x: x.cumsum(-1),
    "aten.native_layer_norm.default": lambda x: F.layer_norm(x, x.shape[-1:]),
    "aten.native_group_norm.default": lambda x: F.group_norm(x[:, None].expand(-1, 4, -1), 2),
    "aten.instance_norm.default": lambda x: F.instance_norm(x[:, None]),
    "aten.avg_pool1d.default": lambda x: F.avg_pool1d(x[:, None], x.shape[-1] // 2),
    "aten.adaptive_avg_pool1d.default": lambda x: F.adaptive_avg_pool1d(x[:, None], 1),
    "aten.mm.default": lambda x: x @ x.mT,
}
_LENGTHS = {"2^8": 2**8, "2^16": 2**16, "2^20": 2**20}


def _inputs(length: int) -> dict[str, Tensor]:
    noise = torch.randn(2, length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return {"long": noise.abs(), "long and offset": noise + 4096, "long and equal": torch.ones_like(noise)}


CASES: dict[str, tuple[Callable[[Tensor], Any], tuple[tuple[str, Tensor], ...]]] = {
    f"{name}{', ' if ',' not in name else ' '}{words} elements": (function, tuple(_inputs(length).items()))
    for name, function in _FUNCTIONS.items()
    for words, length in _LENGTHS.items()
}
