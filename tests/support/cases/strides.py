"""Models that read memory by as_strided, of tensors that torch keeps in other orders than row-major."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

F = nn.functional
MATRIX = torch.arange(6.0).reshape(2, 3)
TRANSPOSED = torch.arange(6.0).reshape(3, 2).t()
IMAGE = torch.linspace(-1, 1, 192).reshape(2, 3, 4, 8).to(memory_format=torch.channels_last)


def _written(x: Tensor) -> Tensor:
    y = x.t().relu()
    y.as_strided((2,), (2,), 1).add_(1)
    return y


def _convolution(x: Tensor) -> Tensor:
    weights = torch.linspace(-1, 1, 108).reshape(4, 3, 3, 3).to(memory_format=torch.channels_last)
    return F.conv2d(x, weights).as_strided((4, 6), (1, 4), 3)


# Name -> function and input. Each applies an operator that backends run.
CASES: Mapping[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "row-major": (lambda x: x.relu().as_strided((2, 2), (1, 2), 1), MATRIX),
    "transposed input": (lambda x: x.as_strided((6,), (1,)).relu(), TRANSPOSED),
    "after an operator": (lambda x: x.relu().as_strided((3, 2), (1, 3)), TRANSPOSED),
    "transposed": (lambda x: x.t().as_strided((3, 2), (1, 3)).relu(), MATRIX),
    "transposed after an operator": (lambda x: x.relu().t().as_strided((3, 2), (1, 3)), MATRIX),
    "transposed before an operator": (lambda x: x.t().relu().as_strided((3, 2), (1, 3)), MATRIX),
    "a transposed copy": (lambda x: x.relu().t().contiguous().as_strided((6,), (1,)), MATRIX),
    "a copy in memory order": (lambda x: x.relu().t().clone().as_strided((6,), (1,)), MATRIX),
    "outside of a slice": (lambda x: x.relu()[1:].as_strided((2,), (1,), 1), MATRIX),
    "in a slice": (lambda x: x.relu()[1:, 1:].as_strided((2,), (1,)), MATRIX),
    "expanded": (lambda x: x.relu()[:, :1].expand(2, 3).as_strided((2,), (3,)), MATRIX),
    "an item of a split": (lambda x: x.relu().t().split(2)[1].as_strided((2,), (3,)), MATRIX),
    "sorted": (lambda x: x.relu().t().sort(0).values.as_strided((6,), (1,)), MATRIX),
    "another dtype": (lambda x: x.relu().t().to(torch.float64).as_strided((6,), (1,)), MATRIX),
    "of itself": (lambda x: x.relu().t().as_strided((3, 2), (2, 1)).t().as_strided((4,), (1,), 1), MATRIX),
    "like another": (lambda x: torch.zeros_like(x.t()).as_strided((3, 2), (1, 3)) + x.t().relu(), MATRIX),
    "convolution": (_convolution, IMAGE),
    "pooling": (lambda x: F.avg_pool2d(x, 2).as_strided((12,), (1,)), IMAGE),
    "resizing": (lambda x: F.interpolate(x, scale_factor=2.0).as_strided((5, 3), (3, 1), 4), IMAGE),
    "normalization": (lambda x: F.group_norm(x, 3).as_strided((12,), (1,)), IMAGE),
    "after a normalization": (lambda x: F.group_norm(x, 3).relu().as_strided((4, 6), (1, 4), 3), IMAGE),
    "in a slice of a normalization": (lambda x: F.group_norm(x, 3)[:, 1:].relu().as_strided((5,), (3,)), IMAGE),
    "outside of a slice of a normalization": (
        lambda x: F.group_norm(x, 3).relu()[:, 1:].as_strided((5,), (3,)),
        IMAGE,
    ),
    "joined": (lambda x: torch.cat([x.relu(), x], 1).as_strided((12,), (1,)), IMAGE),
    "channels last": (lambda x: x.relu().permute(0, 2, 3, 1).as_strided((4, 3), (6, 1)), IMAGE),
    "copied": (lambda x: torch.as_strided_copy(x.t().relu(), (3, 2), (1, 3)), MATRIX),
    "scattered": (lambda x: torch.as_strided_scatter(x.t().relu(), torch.ones(2), (2,), (1,), 1), MATRIX),
    "written": (_written, MATRIX),
}


def compare(name: str, backends: list[str], *, dynamic: bool = False) -> frozenset[str]:
    """Compare a case with eager, also with another first size if it is dynamic; return the operators on backends."""
    function, x = CASES[name]
    shapes = (({0: Dim("first", min=2, max=64)},),) if dynamic else None
    exported = torch.export.export(Function(function), (x,), dynamic_shapes=shapes)
    program = delegate.to_backend(exported, backends)
    for value in (x, torch.cat([x, 2 * x + 1])) if dynamic else (x,):
        assert_same(program(value), function(value), 1e-5)
    return frozenset(n.op for n in program.report.nodes if n.backend != "portable")
