"""Differences from torch that this backend keeps are as their rows of deviations describe them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, tensor

import delegate
from tests.support.cases.kept_differences import INF, NAN, check, sampled_affine
from tests.support.functions import Function
from tests.support.lowering import assert_runs, assert_same

EXPECTED: dict[str, tuple[list[float], list[float]]] = {
    "gelu": ([INF, 2e38, 0.8413447], [NAN, INF, 0.8413447]),
    "var_mean": ([NAN, INF], [NAN, NAN]),
    "add, alpha": ([INF, 3.0], [1.9999997e37, 3.0]),
    "remainder": ([0.079594813], [NAN]),
    "masked key": ([1.0, NAN], [NAN, NAN]),
    "rows that see nothing": ([0.0, NAN], [NAN, NAN]),
    "resized": ([INF, NAN, NAN], [INF, 1.25, 2.75]),
    "sampled far away": ([0.0], [3.0]),
    "sampled at infinity": ([2.0], [3.0]),
    "positions": ([1, 2], [1, 5]),
    "quantized": ([-128, 2], [0, 2]),
    "hardswish": ([-1.7881391, -3333333.25], [-2.3841853, -3333333.5]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_difference(name: str) -> None:
    check(name, "onnxruntime", *EXPECTED[name])


def test_pixels_of_a_computed_grid_differ_at_halves_only() -> None:
    assert sampled_affine("onnxruntime", 0.5) == 0
    assert sampled_affine("onnxruntime", 2.0) > 0


INDEX = tensor([[0, 1, 2, 0, 0], [2, 0, 0, 1, 2]])


# ONNX Runtime 1.31.1 has these kernels for some dtypes only, and fails in the first call.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "prod"])
def test_reductions_at_indices(reduce: str, dtype: torch.dtype) -> None:
    def reduce_at(x: Tensor, source: Tensor) -> Tensor:
        return x.scatter_reduce(0, INDEX, source, reduce)

    x, source = (torch.arange(n).remainder(3).reshape(-1, 5).to(dtype) for n in (15, 10))
    program = delegate.to_backend(torch.export.export(Function(reduce_at), (x, source)), "onnxruntime")
    assert_runs(program, "onnxruntime" if dtype in (torch.float32, torch.int32) else "portable")
    assert_same(program(x, source), reduce_at(x, source), 0)
