"""Planted faults: the debugger finds the changed operator, and nothing else, on whole models."""

from __future__ import annotations

import pytest

from tests.support.cases.planted import assert_found, cases

CASES = cases("openvino", 3)


@pytest.mark.parametrize(
    ("backend", "model", "fault"), [CASES[0], *(pytest.param(*c, marks=pytest.mark.slow) for c in CASES[1:])]
)
def test_the_changed_operator_is_found(backend: str, model: str, fault: str) -> None:
    assert_found(backend, model, fault)
