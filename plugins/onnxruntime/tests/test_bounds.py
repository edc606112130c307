"""Bounds after bounds: as in eager."""

from __future__ import annotations

import pytest

from tests.support.cases.bounds import CASES, compare


@pytest.mark.parametrize("name", CASES)
def test_a_range(name: str) -> None:
    assert compare(name, ["onnxruntime"])
