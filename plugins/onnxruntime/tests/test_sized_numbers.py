"""Numbers that are computed from dynamic sizes have their values in the call, whatever takes them."""

from __future__ import annotations

import pytest

from tests.support.cases.sized_numbers import CASES, compare
from tests.support.sampling import only

# Case -> how many nodes ONNX Runtime runs, and how many it refuses for each reason.
ANSWERS = {
    "part": {"runs": 35, "dynamic_shape": 57, "operator": 3, "inaccurate": 1},
    "root": {"runs": 33, "dynamic_shape": 52, "operator": 1, "inaccurate": 1},
    "twice": {"runs": 79, "dynamic_shape": 71, "operator": 7, "dtype": 2, "inaccurate": 1},
    "none": {"runs": 32, "dynamic_shape": 52, "operator": 1, "dtype": 1, "inaccurate": 1},
}


@pytest.mark.parametrize("case", only(["none"], CASES))
def test_calls_are_right_at_other_sizes(case: str) -> None:
    compare(case, "onnxruntime", ANSWERS[case])
