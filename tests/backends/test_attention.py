"""Attention with masks and gates over head sizes and lengths: as in eager on every backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.availability import require
from tests.support.cases.attention import Case, cases, compare

CONFIGS: Mapping[str, dict[str, Any]] = {
    "portable": {"backends": []},
    "xnnpack": {"backends": ["xnnpack"]},
    "webgpu": {"backends": ["webgpu"]},
    "cuda": {"backends": [{"name": "cuda", "options": {"arch": "llvm"}}]},
}


@pytest.mark.parametrize("case", [*cases(long=False)], ids=str)
@pytest.mark.parametrize("backend", [pytest.param(b, marks=pytest.mark.slow if b == "webgpu" else ()) for b in CONFIGS])
def test_a_combination(backend: str, case: Case) -> None:
    require(backend)
    assert bool(compare(case, CONFIGS[backend])) is (backend != "portable")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_the_grid(backend: str) -> None:
    for case in cases(long=True):
        assert bool(compare(case, CONFIGS[backend])) is (backend != "portable"), case
