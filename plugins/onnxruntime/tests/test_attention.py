"""Attention with masks and gates over head sizes and lengths: as in eager."""

from __future__ import annotations

import pytest

from tests.support.cases.attention import Case, cases, compare


@pytest.mark.parametrize("case", [*cases(long=False)], ids=str)
def test_a_combination(case: Case) -> None:
    assert "aten." in "".join(compare(case, {"backends": ["onnxruntime"]}))


@pytest.mark.slow
def test_the_grid() -> None:
    for case in cases(long=True):
        assert compare(case, {"backends": ["onnxruntime"]}), case
