"""Slices whose bounds are numbers of the data, beside the operators of every backend."""

from __future__ import annotations

import pytest

from tests.support.availability import require
from tests.support.cases.computed_bounds import CASES, compare

BACKENDS = {"portable": [], "xnnpack": ["xnnpack"]}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_a_slice(name: str, backend: str, dynamic: bool) -> None:
    require(backend)
    ran = compare(name, BACKENDS[backend], dynamic=dynamic)
    assert bool(ran) == (backend == "xnnpack") or name not in ("computed after", "reduced")
