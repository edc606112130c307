"""The pixels that resizing, sampling and pooling read: those that torch reads, on every backend."""

from __future__ import annotations

import pytest

from tests.support.availability import require
from tests.support.cases.resizing import CASES, DYNAMIC, compare, compare_sizes

BACKENDS = {"portable": [], "xnnpack": ["xnnpack"], "webgpu": ["webgpu"], "dsp": ["dsp"]}
ON_XNNPACK = {"rows", "columns", "rows exact", "columns exact", "factors", "factors exact", "half"}


@pytest.mark.parametrize("backend", ["portable", "xnnpack", pytest.param("webgpu", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_pixels(name: str, backend: str) -> None:
    require(backend)
    ran = compare(name, BACKENDS[backend])
    assert ran or backend != "xnnpack" or name not in ON_XNNPACK


@pytest.mark.parametrize("backend", ["portable", "xnnpack", pytest.param("webgpu", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DYNAMIC)
def test_pixels_of_dynamic_sizes(name: str, backend: str) -> None:
    require(backend)
    ran = compare_sizes(name, BACKENDS[backend])
    assert not ran or backend != "portable"
