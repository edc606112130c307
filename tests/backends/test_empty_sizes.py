"""Calls in which a dynamic size is 0: right on every backend, or left to portable kernels by it."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.availability import require
from tests.support.cases.empty_sizes import CASES, compare

_LEFT_TO_KERNELS = {
    "sum": "",
    "sum of all": "",
    "sum that keeps the size": "add",
    "sum of a product": "matmul",
    "sum of sums": "cumsum",
    "sum between others": "mul relu",
    "mean": "",
    "variance": "",
    "product": "",
    "norm": "",
    "logsumexp": "",
    "any": "gt",
    "all": "gt logical_not",
    "matrix product": "",
    "batched product": "",
    "attention": "",
}
# Backend -> the operators of each case that it runs.
RUNS: Mapping[str, Mapping[str, str]] = {
    "portable": dict.fromkeys(CASES, ""),
    "xnnpack": {
        "sum": "sum",
        "sum of all": "sum",
        "sum that keeps the size": "sum add",
        "sum of a product": "matmul sum",
        "sum of sums": "sum",
        "sum between others": "mul relu sum",
        "mean": "mean",
        "variance": "",
        "product": "",
        "norm": "linalg_vector_norm",
        "logsumexp": "logsumexp",
        "any": "",
        "all": "",
        "matrix product": "",
        "batched product": "",
        "attention": "",
        "rows beside others": "cat mul",
        "rows between zeros": "constant_pad_nd mul",
        "no result": "matmul _softmax mean max",
    },
    "webgpu": {
        **_LEFT_TO_KERNELS,
        "rows beside others": "mul",
        "rows between zeros": "mul",
        "no result": "matmul _softmax mean max",
    },
    "cuda": {
        **_LEFT_TO_KERNELS,
        "rows beside others": "",
        "rows between zeros": "",
        "no result": "matmul _softmax mean",
    },
}
_CONFIGS: Mapping[str, dict[str, Any]] = {
    "portable": {"backends": []},
    "cuda": {"backends": [{"name": "cuda", "options": {"arch": "llvm"}}]},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", RUNS)
def test_a_size_of_zero(backend: str, case: str) -> None:
    if backend != "portable":
        require(backend)
    assert compare(case, _CONFIGS.get(backend, {"backends": [backend]})) == RUNS[backend][case]
