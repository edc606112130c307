"""Weights of equal bytes, each read by another operator: libraries know what they packed by its place, or its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

import delegate
from tests.support.lowering import assert_runs, assert_same

Use = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

torch.manual_seed(0)
FILTERS, MATRIX = torch.randn(8, 8, 3, 3) / 4, torch.randn(16, 16) / 4

OF_FILTERS: dict[str, Use] = {
    "plain": lambda x, w: F.conv2d(x, w, padding=1),
    "in steps": lambda x, w: F.conv2d(x, w, stride=2),
    "turned": lambda x, w: F.conv2d(x, w.transpose(0, 1)),
    "in groups": lambda x, w: F.conv2d(x, w.reshape(16, 4, 3, 3), groups=2),
    "in more groups": lambda x, w: F.conv2d(x, w.reshape(32, 2, 3, 3), groups=4),
    "depthwise": lambda x, w: F.conv2d(x, w.reshape(64, 1, 3, 3), groups=8),
    "transposed": F.conv_transpose2d,
    "transposed in groups": lambda x, w: F.conv_transpose2d(x, w, groups=2),
    "transposed depthwise": lambda x, w: F.conv_transpose2d(x, w.reshape(8, 8, 3, 3), groups=8),
    "linear": lambda x, w: F.linear(x[:, :, :3, :3].flatten(1), w.flatten(1)),
    "added": lambda x, w: x[:1, :, :3, :3] + w,
}
OF_MATRIX: dict[str, Use] = {
    "linear": F.linear,
    "product": torch.matmul,
    "of another shape": lambda x, w: F.linear(x.reshape(2, 32), w.reshape(8, 32)),
    "batched": lambda x, w: torch.bmm(x.reshape(4, 1, 16)[..., :4], w.reshape(4, 4, 16)),
    "batched, turned": lambda x, w: torch.bmm(x.reshape(4, 1, 16), w.reshape(4, 4, 16).transpose(1, 2)),
    "convolution": lambda x, w: F.conv1d(x[..., None], w[..., None]),
    "transposed convolution": lambda x, w: F.conv_transpose1d(x[..., None], w[..., None]),
    "embedding": lambda x, w: w[(x[:, 0] > 0).long()],
    "added, turned": lambda x, w: x.repeat(4, 1) + w.t(),
}


class Each(nn.Module):
    """Every use with a weight of its own."""

    def __init__(self, uses: Sequence[Use], weight: torch.Tensor) -> None:
        super().__init__()
        self.uses = uses
        self.weights = nn.ParameterList(weight.clone() for _ in uses)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(use(x, w) for use, w in zip(self.uses, self.weights, strict=True))


CASES: Mapping[str, tuple[Mapping[str, Use], torch.Tensor, torch.Tensor]] = {
    "filters": (OF_FILTERS, FILTERS, torch.randn(2, 8, 9, 9)),
    "matrix": (OF_MATRIX, MATRIX, torch.randn(4, 16)),
    "filters from the end": (dict(reversed(OF_FILTERS.items())), FILTERS, torch.randn(2, 8, 9, 9)),
    "matrix from the end": (dict(reversed(OF_MATRIX.items())), MATRIX, torch.randn(4, 16)),
}


def compare(case: str, backend: str, tolerance: float, refused: Mapping[str, int]) -> None:
    """Assert that each use has its own numbers, up to a part of the largest one, and that a backend computes them.

    Args:
        case: one of `CASES`.
        backend: that runs every node but the refused ones.
        tolerance: see `assert_same`.
        refused: operators with the number of their nodes that the backend refuses.
    """
    config = {"backends": [backend], "partitioning": {"min_partition_size": 0}}
    uses, weight, x = CASES[case]
    module = Each(list(uses.values()), weight).eval()
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, (x,)), config=config)
        assert_runs(program, backend, refused)
        assert_same(dict(zip(uses, program(x), strict=True)), dict(zip(uses, module(x), strict=True)), tolerance)
