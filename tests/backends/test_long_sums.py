"""Sums of many floats on the built-in backends."""

from __future__ import annotations

import pytest

from tests.support.cases.long_sums import LINEAR, NORMALIZATIONS, OTHERS, SCANS, SHAPES, errors


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backend", ["", "xnnpack"])
def test_long_sums(backend: str, shape: tuple[int, ...]) -> None:
    assert errors(backend, {**LINEAR, **OTHERS, **NORMALIZATIONS, **(SCANS if not backend else {})}, shape) == {}
