"""Numbers that are computed from dynamic sizes have their values in the call, whatever takes them."""

from __future__ import annotations

import pytest

from tests.support.cases.sized_numbers import CASES, compare
from tests.support.sampling import only

# Case -> how many nodes OpenVINO runs, and how many it refuses for each reason.
ANSWERS = {
    "part": {"runs": 33, "refused": 43, "operator": 3, "dynamic_shape": 8, "dtype": 3},
    "root": {"runs": 31, "refused": 36, "operator": 3, "dynamic_shape": 8, "dtype": 3},
    "twice": {"runs": 90, "operator": 9, "dynamic_shape": 11, "dtype": 22, "attribute": 1, "inaccurate": 9},
    "none": {"runs": 59, "operator": 10, "dynamic_shape": 8, "dtype": 4},
}


@pytest.mark.parametrize("case", only(["twice"], CASES))
def test_calls_are_right_at_other_sizes(case: str) -> None:
    compare(case, "openvino", ANSWERS[case])
