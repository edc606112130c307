"""as_strided of tensors in row-major order: as in eager, whatever runs the operators before it; others are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import delegate
from delegate.errors import ExportError
from delegate.testing import assert_same
from tests.support.functions import Function

MATRIX = torch.arange(6.0).reshape(2, 3)
TRANSPOSED = torch.arange(6.0).reshape(3, 2).t()
IMAGE = torch.linspace(-1, 1, 192).reshape(2, 3, 4, 8)
LAST = IMAGE.to(memory_format=torch.channels_last)


def _write(x):
    y = x.relu()
    y.t().as_strided((2,), (2,), 1).add_(1)
    return y


CASES = {
    "row-major": (lambda x: x.relu().as_strided((2, 2), (1, 2), 1), MATRIX),
    "transposed": (lambda x: x.t().as_strided((3, 2), (1, 3)).relu(), MATRIX),
    "transposed after an operator": (lambda x: x.relu().t().as_strided((3, 2), (1, 3)), MATRIX),
    "a transposed copy": (lambda x: x.relu().t().contiguous().as_strided((6,), (1,)), MATRIX),
    "outside of a slice": (lambda x: x.relu()[1:].as_strided((2,), (1,), 1), MATRIX),
    "in a slice": (lambda x: x.relu()[1:, 1:].as_strided((2,), (1,)), MATRIX),
    "expanded": (lambda x: x.relu()[:, :1].expand(2, 3).as_strided((2,), (3,)), MATRIX),
    "an item of a split": (lambda x: x.relu().t().split(2)[1].as_strided((2,), (3,)), MATRIX),
    "of itself": (lambda x: x.relu().t().as_strided((3, 2), (2, 1)).t().as_strided((4,), (1,), 1), MATRIX),
    "a pooled copy": (lambda x: nn.functional.avg_pool2d(x, 2).contiguous().as_strided((12,), (1,)), LAST),
    "joined": (lambda x: torch.cat([x.relu(), x], 1).as_strided((12,), (1,)), IMAGE),
    "copied": (lambda x: torch.as_strided_copy(x.relu().t(), (3, 2), (1, 3)), MATRIX),
    "scattered": (lambda x: torch.as_strided_scatter(x.relu(), torch.ones(2), (2,), (1,), 1), MATRIX),
    "written": (_write, MATRIX),
}
DYNAMIC = ("row-major", "transposed", "transposed after an operator", "a transposed copy", "joined", "written")


@pytest.mark.parametrize("backends", [[], ["xnnpack"]], ids=["portable", "xnnpack"])
@pytest.mark.parametrize(("name", "dynamic"), [*((name, False) for name in CASES), *((name, True) for name in DYNAMIC)])
def test_a_row_major_tensor(name: str, dynamic: bool, backends: list[str]) -> None:
    function, x = CASES[name]
    shapes = (({0: Dim("first", min=2, max=64)},),) if dynamic else None
    program = delegate.to_backend(export(Function(function), (x,), dynamic_shapes=shapes), backends)
    for value in (x, torch.cat([x, 2 * x + 1])) if dynamic else (x,):
        assert_same(program(value), function(value), 1e-5)
    assert bool(backends) is any(n.backend != "portable" for n in program.report.nodes)


def test_torchs_own_kernels_read_in_the_same_order() -> None:
    function, x = CASES["transposed after an operator"]
    program = delegate.to_backend(export(Function(function), (x,)), config={"backends": [], "kernels": ["aten"]})
    assert torch.equal(torch.as_tensor(program(x)), function(x))


REFUSED = {
    "gaps": (lambda x: x.as_strided((4,), (1,)) * 2, torch.arange(12.0).reshape(2, 6)[:, ::2]),
    "transposed input": (lambda x: x.as_strided((6,), (1,)).relu(), TRANSPOSED),
    "an operator keeps the layout": (lambda x: x.t().relu().as_strided((3, 2), (1, 3)), MATRIX),
    "channels last": (lambda x: nn.functional.group_norm(x, 3).as_strided((12,), (1,)), LAST),
    "scattered": (lambda x: torch.as_strided_scatter(x.t(), torch.ones(2), (2,), (1,), 1), MATRIX),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_order_is_refused(name: str) -> None:
    function, x = REFUSED[name]
    with pytest.raises(ExportError, match=r"as_strided reads .*, whose memory is not in row-major .*call \.contiguous"):
        delegate.to_backend(export(Function(function), (x,)), [])
