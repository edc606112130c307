"""Calls in which a dynamic size is 0: right on OpenVINO, or left to portable kernels."""

from __future__ import annotations

import pytest

from tests.backends.empty_sizes import CASES, compare

# Case -> the operators that OpenVINO runs; means and products over nothing are wrong.
RUNS = {
    "sum": "sum",
    "sum of all": "sum",
    "sum that keeps the size": "sum add",
    "sum of a product": "matmul sum",
    "sum of sums": "cumsum sum",
    "sum between others": "mul relu sum",
    "mean": "",
    "variance": "",
    "product": "prod",
    "norm": "linalg_vector_norm",
    "logsumexp": "logsumexp",
    "any": "gt any",
    "all": "gt logical_not any",
    "matrix product": "",
    "batched product": "",
    "attention": "",
    "rows beside others": "cat mul",
    "rows between zeros": "constant_pad_nd mul",
    "no result": "matmul _softmax mean max",
}


@pytest.mark.parametrize("case", CASES)
def test_a_size_of_zero(case: str) -> None:
    assert compare(case, {"backends": ["openvino"]}) == RUNS[case]
