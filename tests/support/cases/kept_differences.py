"""Differences from torch that backends keep: an operator, inputs, and the results of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, tensor
from torch.nn import functional as F

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
INF, NAN = float("inf"), float("nan")


def _attend(key: float, mask: Tensor) -> Case:
    """Return attention of two ones to two keys, of which the first has a number."""
    ones, keys = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    keys[..., 0, 0] = key
    return (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m)[..., 0]), (
        ones,
        keys,
        ones.clone(),
        mask,
    )


def _sample(padding: str, x: float) -> Case:
    """Return an image of 1 to 4 at a point whose other coordinate is 0."""
    image, grid = torch.arange(1.0, 5).reshape(1, 1, 2, 2), tensor([x, 0.0]).reshape(1, 1, 1, 2)
    return (lambda x, g: F.grid_sample(x, g, padding_mode=padding, align_corners=False)), (image, grid)


CASES: Mapping[str, Case] = {
    "gelu": (F.gelu, (tensor([INF, 2e38, 1.0]),)),
    "var_mean": (lambda x: torch.stack(torch.var_mean(x, -1)), (tensor([INF, 1.0, 2.0]),)),
    "add, alpha": (lambda x, y: torch.add(x, y, alpha=2), (tensor([-3.4e38, 1.0]), tensor([1.8e38, 1.0]))),
    "remainder": (lambda x: (x % 0.1).mean(), (torch.full((16,), 3e38),)),
    "masked key": _attend(NAN, tensor([[False, True], [True, True]])),
    "rows that see nothing": _attend(NAN, tensor([[-INF, -INF], [0.0, 0.0]])),
    "resized": (
        lambda x: F.interpolate(x, scale_factor=2, mode="linear")[..., ::3], (tensor([[[INF, 1.0, 2.0, 3.0]]]),)
    ),
    "sampled far away": _sample("border", 1e9),
    "sampled at NaN": _sample("border", NAN),
    "sampled at infinity": _sample("border", INF),
    "positions": (lambda x: x.topk(2)[1], (tensor([1.0, 3, 3, 1, 1, 3]),)),
    "quantized": (
        lambda x: torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8),
        (tensor([NAN, 0.25]),),
    ),
    "hardswish": (lambda x: F.hardswish(x) * 1e7, (tensor([-2.9999995, -1.0]),)),
    "long product": (lambda x: x @ x.mT, (torch.arange(2.0**21).fmod(7).reshape(2, 2**20) / 3,)),
}  # fmt: skip


def check(name: str, backend: str, ours: Sequence[float], eager: Sequence[float]) -> None:
    """Check the flat results of a backend, which runs all of a case, and of torch to four digits."""
    function, inputs = CASES[name]
    config = {"backends": [backend], "partitioning": {"min_partition_size": 0}}
    program = delegate.to_backend(torch.export.export(Function(function), inputs), config=config)
    assert {n.backend for n in program.report.nodes} == {backend}
    for results, expected in ((program(*inputs), ours), (function(*inputs), eager)):
        assert_same(results.flatten().double(), tensor(expected).double(), 1e-5, each=True)


def sampled_affine(backend: str, factor: float) -> int:
    """Return how many pixels of an image, scaled by a factor and sampled to the nearest pixel, differ from torch's."""

    def sampled(theta: Tensor, image: Tensor) -> Tensor:
        return F.grid_sample(
            image, F.affine_grid(theta, (1, 3, 8, 8), align_corners=False), mode="nearest", align_corners=False
        )

    inputs = (tensor([[[factor, 0.0, 0.0], [0.0, factor, 0.0]]]), torch.arange(192.0).reshape(1, 3, 8, 8))
    program = delegate.to_backend(torch.export.export(Function(sampled), inputs), backend)
    assert any(n.backend == backend for n in program.report.nodes if "grid_sampler" in n.op)
    return int((program(*inputs) != sampled(*inputs)).sum())
