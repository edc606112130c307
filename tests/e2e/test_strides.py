"""as_strided of tensors in any layout: as in eager, whatever runs the operators before it."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

import delegate
from delegate.errors import ExportError
from tests.support.availability import require
from tests.support.cases.strides import CASES, MATRIX, compare
from tests.support.functions import Function

BACKENDS = {"portable": [], "xnnpack": ["xnnpack"]}


@pytest.mark.parametrize("backends", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_a_layout(name: str, backends: list[str]) -> None:
    assert bool(compare(name, backends)) is bool(backends)


# What torch exports with a dynamic first size, with a layout that is the same for all of them.
DYNAMIC = ("row-major", "transposed after an operator", "transposed before an operator", "a transposed copy",
    "a copy in memory order", "convolution", "pooling", "normalization", "after a normalization", "joined", "copied",
    "written")  # fmt: skip


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_dynamic_size(name: str) -> None:
    require("xnnpack")
    assert compare(name, ["xnnpack"], dynamic=True)


def test_torchs_own_kernels_read_in_the_same_order() -> None:
    function, x = CASES["transposed before an operator"]
    program = delegate.to_backend(export(Function(function), (x,)), config={"backends": [], "kernels": ["aten"]})
    assert torch.equal(torch.as_tensor(program(x)), function(x))


def test_memory_with_gaps_is_refused() -> None:
    gaps = torch.arange(12.0).reshape(2, 6)[:, ::2]
    exported = export(Function(lambda x: x.as_strided((4,), (1,)) * 2), (gaps,))
    with pytest.raises(ExportError, match=r"as_strided reads .*, whose memory has gaps or overlaps.*call \.contiguous"):
        delegate.to_backend(exported, [])
    assert MATRIX.is_contiguous()
