"""Positions of equal elements: those that torch returns."""

from __future__ import annotations

import pytest

from tests.support.cases.ties import CASES, compare


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_a_position(name: str, dynamic: bool) -> None:
    ran = compare(name, ["openvino"], dynamic=dynamic)
    assert not name.startswith(("max", "min", "arg")) or ran
