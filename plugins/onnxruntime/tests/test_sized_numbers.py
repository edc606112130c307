"""Numbers that are computed from dynamic sizes are those of the call, whatever takes them."""

from __future__ import annotations

import pytest

from tests.backends.sized_numbers import CASES, compare


@pytest.mark.parametrize("case", CASES)
def test_calls_are_right_at_other_sizes(case: str) -> None:
    compare(case, {"backends": ["onnxruntime"], "partitioning": {"min_partition_size": 0}})
