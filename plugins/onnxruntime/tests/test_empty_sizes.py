"""Calls in which a dynamic size is 0: right on ONNX Runtime, or left to portable kernels."""

from __future__ import annotations

import pytest

from tests.support.cases.empty_sizes import ALL, CASES, compare

# Case -> the operators that ONNX Runtime runs; its mean of nothing is 0. A logsumexp is decomposed, with a maximum.
RUNS = {**ALL, "mean": "", "logsumexp": ""}


@pytest.mark.parametrize("case", CASES)
def test_a_size_of_zero(case: str) -> None:
    assert compare(case, {"backends": ["onnxruntime"]}) == RUNS[case]
