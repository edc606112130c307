"""The tests that every backend of a plugin has to pass, with what OpenVINO answers."""

from __future__ import annotations

import pytest
from delegate_openvino.deviations import DEVIATIONS  # noqa: F401 - the shared tests read it

from tests.support.cases import long_sums, planted
from tests.support.shared_tests import *  # noqa: F403

BACKEND = "openvino"
ANY_BIAS = True  # OpenVINO adds biases in floats
EMPTY_SIZES = {"mean": "", "matrix product": "", "batched product": "", "attention": ""}  # wrong over nothing
FEW_ELEMENTS = {("mask", "scatter")}  # OpenVINO runs neither the mask nor the function
# OpenVINO computes float64 in float32.
LEFT_PIXELS = {"halves that are reflected", "double", "double planes", "double exact", "a size that float32 rounds"}
SIZED_NUMBERS = {
    "part": {"runs": 33, "refused": 43, "operator": 3, "dynamic_shape": 8, "dtype": 3},
    "root": {"runs": 31, "refused": 36, "operator": 3, "dynamic_shape": 8, "dtype": 3},
    "twice": {"runs": 90, "operator": 9, "dynamic_shape": 11, "dtype": 22, "attribute": 1, "inaccurate": 9},
    "none": {"runs": 58, "operator": 5, "inaccurate": 8, "dynamic_shape": 12, "dtype": 4},
}
PLANTED = planted.cases(BACKEND, 3)


def test_two_to_the_power_of_25_ones() -> None:
    """OpenVINO alone returns a mean of 0.5."""
    assert long_sums.errors(BACKEND, {"mean": long_sums.LINEAR["mean"]}, (1 << 25,)) == {}


# Variances of dynamic sizes stay as OpenVINO computes them, which is 6e-6 off here.
@pytest.mark.parametrize("name", sorted(long_sums.DYNAMIC.keys() - {"variance of all beside a long size"}))
def test_long_sums_of_dynamic_sizes(name: str) -> None:
    long_sums.check_dynamic(BACKEND, long_sums.DYNAMIC[name])
