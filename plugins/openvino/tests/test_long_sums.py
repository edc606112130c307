"""Sums of many floats, which are added up in stages."""

from __future__ import annotations

import pytest

from tests.support.cases.long_sums import (
    DYNAMIC,
    LINEAR,
    NORMALIZATIONS,
    OTHERS,
    SCANS,
    SHAPES,
    check_dynamic,
    errors,
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_long_sums(shape: tuple[int, ...]) -> None:
    assert errors("openvino", {**LINEAR, **OTHERS, **NORMALIZATIONS, **SCANS}, shape) == {}


def test_two_to_the_power_of_25_ones() -> None:
    """OpenVINO alone returns a mean of 0.5."""
    assert errors("openvino", {"mean": LINEAR["mean"]}, (1 << 25,)) == {}


# Variances of dynamic sizes stay as OpenVINO computes them, which is 6e-6 off here.
@pytest.mark.parametrize("name", sorted(DYNAMIC.keys() - {"variance of all beside a long size"}))
def test_dynamic_sizes(name: str) -> None:
    check_dynamic("openvino", DYNAMIC[name])
