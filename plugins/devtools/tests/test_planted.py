"""Planted faults: the debugger finds the changed operator, and nothing else, on whole models and real backends."""

from __future__ import annotations

import pytest

from tests.support.availability import require
from tests.support.cases.planted import assert_found, cases

CASES = [*cases("xnnpack", 0), *cases("dsp", 1), *cases("webgpu", 2)]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("backend", "model", "fault"), [CASES[0], *(pytest.param(*c, marks=pytest.mark.slow) for c in CASES[1:])]
)
def test_the_changed_operator_is_found(backend: str, model: str, fault: str) -> None:
    require(backend)
    assert_found(backend, model, fault)
