"""Bounds after bounds: as in eager on every backend."""

from __future__ import annotations

import pytest

from tests.support.availability import require
from tests.support.cases.bounds import CASES, compare

BACKENDS = {"portable": [], "xnnpack": ["xnnpack"], "webgpu": ["webgpu"]}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_a_range(name: str, backend: str) -> None:
    require(backend)
    assert bool(compare(name, BACKENDS[backend])) is (backend != "portable")
