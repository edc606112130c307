"""Sums of many floats on the built-in backends."""

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

# What needs static sizes on XNNPACK, or does not run there at all.
STATIC = {"pool to as many rows", "pool to as many columns as rows", "variance", "running sum"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backend", ["", "xnnpack"])
def test_long_sums(backend: str, shape: tuple[int, ...]) -> None:
    assert errors(backend, {**LINEAR, **OTHERS, **NORMALIZATIONS, **(SCANS if not backend else {})}, shape) == {}


@pytest.mark.parametrize("name", sorted(DYNAMIC.keys() - STATIC))
def test_dynamic_sizes(name: str) -> None:
    check_dynamic("xnnpack", DYNAMIC[name])
