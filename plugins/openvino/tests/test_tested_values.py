"""Operators that lose NaN or infinity are left to others if the program tests for them."""

from __future__ import annotations

from tests.support.cases.tested_values import differences


def test_what_programs_test_for_is_kept() -> None:
    assert differences("openvino") == set()
