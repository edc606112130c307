"""The pixels that resizing, sampling and pooling read: those that torch reads."""

from __future__ import annotations

import pytest

from tests.support.cases.resizing import CASES, DYNAMIC, compare, compare_sizes

LEFT = {"halves that are reflected", "double", "double planes", "double exact"}


@pytest.mark.parametrize("name", CASES)
def test_pixels(name: str) -> None:
    assert bool(compare(name, ["onnxruntime"])) != (name in LEFT)


@pytest.mark.parametrize("name", DYNAMIC)
def test_pixels_of_dynamic_sizes(name: str) -> None:
    assert compare_sizes(name, ["onnxruntime"]) == DYNAMIC[name][2]
