"""Sizes that depend on data, of which a call has 0, 1 or more: right on ONNX Runtime, or left to portable kernels."""

from __future__ import annotations

import pytest

from tests.support.cases.few_elements import CASES, WITH_ANY_ROWS, compare
from tests.support.sampling import every

CONFIG = {"backends": ["onnxruntime"], "partitioning": {"min_partition_size": 0}}
PORTABLE = {
    ("mask", "variance"),
    ("mask", "sort"),
    ("mask", "scatter"),
}  # ONNX Runtime runs neither the mask nor the function


@pytest.mark.parametrize("case", every(9, [(case,) for case in CASES]), ids=str)
def test_as_eager(case: tuple[str, str]) -> None:
    program = compare(case, CONFIG)
    assert any(node.backend == "onnxruntime" for node in program.report.nodes) == (case not in PORTABLE)


@pytest.mark.parametrize("case", every(13, [(case,) for case in WITH_ANY_ROWS]), ids=str)
def test_rows_of_any_number(case: tuple[str, str]) -> None:
    program = compare(case, CONFIG, dynamic=True)
    assert any(node.backend == "onnxruntime" for node in program.report.nodes)
