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

# What needs static sizes here.
STATIC = {
    "pool to as many rows",
    "pool to as many columns as rows",
    "variance",
    "variance of all beside a long size",
    "group norm",
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_long_sums(shape: tuple[int, ...]) -> None:
    assert errors("onnxruntime", {**LINEAR, **OTHERS, **NORMALIZATIONS, **SCANS}, shape) == {}


@pytest.mark.parametrize("name", sorted(DYNAMIC.keys() - STATIC))
def test_dynamic_sizes(name: str) -> None:
    check_dynamic("onnxruntime", DYNAMIC[name])
