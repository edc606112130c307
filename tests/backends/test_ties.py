"""Positions of equal elements: those that torch returns, on every backend."""

from __future__ import annotations

import pytest

from tests.support.availability import require
from tests.support.cases.ties import CASES, compare

BACKENDS = {"portable": [], "xnnpack": ["xnnpack"], "webgpu": ["webgpu"]}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_a_position(name: str, backend: str, dynamic: bool) -> None:
    require(backend)
    ran = compare(name, BACKENDS[backend], dynamic=dynamic)
    assert bool(ran) or name != "max after an operator" or backend == "portable"
