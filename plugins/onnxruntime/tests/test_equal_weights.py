"""Weights of equal bytes are stored once: each use gets its own numbers all the same."""

from __future__ import annotations

import pytest

from tests.support.cases.equal_weights import CASES, compare


@pytest.mark.parametrize("case", CASES)
def test_each_use_has_its_numbers(case: str) -> None:
    compare(case, "onnxruntime", 2e-6, {})
