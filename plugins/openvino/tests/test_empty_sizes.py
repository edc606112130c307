"""Calls in which a dynamic size is 0: right on OpenVINO, or left to portable kernels."""

from __future__ import annotations

import pytest

from tests.support.cases.empty_sizes import ALL, CASES, compare

# Case -> the operators that OpenVINO runs; means and products over nothing are wrong.
RUNS = {**ALL, "mean": "", "matrix product": "", "batched product": "", "attention": ""}


@pytest.mark.parametrize("case", CASES)
def test_a_size_of_zero(case: str) -> None:
    assert compare(case, {"backends": ["openvino"]}) == RUNS[case]
