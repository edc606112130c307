"""The pixels that resizing, sampling and pooling read: those that torch reads."""

from __future__ import annotations

import pytest

from tests.support.cases.resizing import CASES, DYNAMIC, compare, compare_sizes

# OpenVINO computes float64 in float32.
LEFT = {"halves that are reflected", "double", "double planes", "double exact", "a size that float32 rounds"}


@pytest.mark.parametrize("name", CASES)
def test_pixels(name: str) -> None:
    assert bool(compare(name, ["openvino"])) != (name in LEFT)


@pytest.mark.parametrize("name", DYNAMIC)
def test_pixels_of_dynamic_sizes(name: str) -> None:
    assert compare_sizes(name, ["openvino"]) == DYNAMIC[name][2]
