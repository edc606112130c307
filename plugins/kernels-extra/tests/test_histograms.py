"""Histograms: edges, weights, densities, elements outside the range; and sums over segments."""

import math
from typing import Any

import pytest
import torch

from delegate.errors import KernelError
from tests.support.kernels import check, sample

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bins", [1, 4, 7, 100])
def test_bins_of_equal_width(dtype: torch.dtype, bins: Any) -> None:
    x, weight = sample(30, 9, dtype=dtype), sample(30, 9, dtype=dtype, seed=5).abs()
    check(aten.histogram.bin_ct, x, bins)
    check(aten.histogram.bin_ct, x, bins, range=[-1.5, 2.5], weight=weight)
    check(aten.histogram.bin_ct, x, bins, range=[-1.5, 2.5], density=True)
    check(aten.histogram.bin_ct, torch.full((3,), 2.0, dtype=dtype), bins)
    check(aten.histogram.bin_ct, torch.empty(0, dtype=dtype), bins)
    x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    check(aten.histogram.bin_ct, x, bins, range=[-1.0, 1.0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edges_as_arguments(dtype: torch.dtype) -> None:
    x = torch.tensor([-5, -1, 0, 0.25, 0.5, 1, 2, 3, 3.5, math.nan, math.inf], dtype=dtype)
    edges = torch.tensor([-1, 0, 0.5, 3], dtype=dtype)  # an element on an edge is in the bin above, but for the last
    check(aten.histogram.bins_tensor, x, edges)
    check(aten.histogram.bins_tensor, x, edges, density=True)
    check(aten.histogram.bins_tensor, x, edges, weight=torch.arange(11, dtype=dtype))


def test_a_range_that_is_not_finite() -> None:
    from delegate_kernels_extra.histograms import histogram

    x = torch.tensor([1.0, math.inf]).numpy()
    with pytest.raises(KernelError, match="finite range"):
        histogram(x, 2, None, None, False, out=(x.copy(), torch.zeros(3).numpy()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bins", [[3, 4], [1, 7]], ids=str)
def test_bins_of_points(dtype: torch.dtype, bins: Any) -> None:
    x, weight = sample(40, 2, dtype=dtype), sample(40, dtype=dtype, seed=5).abs()
    for op in (aten._histogramdd_bin_edges.default, aten._histogramdd_from_bin_cts.default):
        check(op, x, bins)
        check(op, x.reshape(4, 10, 2), bins)
        check(op, x, bins, range=[-1.5, 2.5, -0.5, 0.5])
        check(op, x, bins, range=[-1.0, 1.0, -0.5, 0.5], weight=weight, density=True)
        check(op, torch.full((3, 2), 2.0, dtype=dtype), bins)
    edges = [torch.tensor([-1, 0, 0.3, 1], dtype=dtype), torch.tensor([0, 0.5, 2], dtype=dtype)]
    x[0, 0], x[1, 1], x[2] = math.nan, math.inf, torch.tensor([1.0, 2.0])
    check(aten._histogramdd_from_bin_tensors.default, x, edges)
    check(aten._histogramdd_from_bin_tensors.default, x, edges, weight=weight, density=True)


@pytest.mark.parametrize("how", ["sum", "mean", "prod", "max", "min"])
def test_segments(how: str) -> None:
    x, lengths = sample(2, 6, 3), torch.tensor([[2, 0, 4], [1, 5, 0]])
    check(aten.segment_reduce.default, x, how, lengths=lengths, axis=1)
    check(aten.segment_reduce.default, x[0], how, lengths=lengths[0], initial=2.0)
