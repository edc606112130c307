"""The tests that every backend of a plugin has to pass, with what ONNX Runtime answers."""

from __future__ import annotations

import pytest
import torch
from delegate_onnxruntime.providers.deviations import DEVIATIONS  # noqa: F401 - the shared tests read it

from tests.support.blocks import IMAGES, check_batches
from tests.support.cases import equal_weights, long_sums, planted
from tests.support.cases.casts import DTYPES, taken
from tests.support.sampling import every
from tests.support.shared_tests import *  # noqa: F403

BACKEND = "onnxruntime"
ANY_BIAS = False
EMPTY_SIZES = {"mean": "", "logsumexp": ""}  # its mean of nothing is 0; a logsumexp is decomposed, with a maximum
FEW_ELEMENTS = {("mask", "variance"), ("mask", "sort"), ("mask", "scatter")}  # neither the mask nor the function
LEFT_PIXELS = {"halves that are reflected", "double", "double planes", "double exact"}
SIZED_NUMBERS = {
    "part": {"runs": 35, "dynamic_shape": 57, "operator": 3, "inaccurate": 1},
    "root": {"runs": 33, "dynamic_shape": 52, "operator": 1, "inaccurate": 1},
    "twice": {"runs": 79, "dynamic_shape": 71, "operator": 7, "dtype": 2, "inaccurate": 1},
    "none": {"runs": 32, "dynamic_shape": 52, "operator": 1, "dtype": 1, "inaccurate": 1},
}
# What needs static sizes here.
STATIC = {
    "pool to as many rows", "pool to as many columns as rows", "variance", "variance of all beside a long size",
    "group norm",
}  # fmt: skip
PLANTED = planted.cases(BACKEND, 5)


@pytest.mark.parametrize("name", sorted(long_sums.DYNAMIC.keys() - STATIC))
def test_long_sums_of_dynamic_sizes(name: str) -> None:
    long_sums.check_dynamic(BACKEND, long_sums.DYNAMIC[name])


@pytest.mark.parametrize("dtype", every(2, DTYPES), ids=str)
def test_casts(dtype: torch.dtype) -> None:
    """float64 and one cast are left to others."""
    refused = {dtype, torch.float64, *([torch.bool] if dtype is torch.bfloat16 else [])}
    assert taken(BACKEND, dtype) == (set() if dtype is torch.float64 else set(DTYPES) - refused)


@pytest.mark.parametrize("case", equal_weights.CASES)
def test_each_use_of_equal_weights_has_its_numbers(case: str) -> None:
    equal_weights.compare(case, BACKEND, 2e-6, {})


@pytest.mark.parametrize("name", IMAGES)
def test_batches_of_any_size(name: str) -> None:
    check_batches(name, BACKEND, 1e-6)
