"""Sums of many floats, which are added up in stages."""

from __future__ import annotations

import pytest

from tests.support.cases.long_sums import LINEAR, NORMALIZATIONS, OTHERS, SCANS, SHAPES, errors


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_long_sums(shape: tuple[int, ...]) -> None:
    assert errors("onnxruntime", {**LINEAR, **OTHERS, **NORMALIZATIONS, **SCANS}, shape) == {}
