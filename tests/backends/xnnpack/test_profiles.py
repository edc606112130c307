"""XNNPACK's operators in events: LiteRT's profiler names them."""

from __future__ import annotations

import pytest

from delegate.backends.xnnpack.runtime import delegate as runtime
from tests.support.cases.inner_operators import assert_operators, assert_table, image, lowered


@pytest.mark.parametrize("dynamic", [False, True])
def test_operators(dynamic):
    operators = assert_operators("xnnpack", "Convolution", "Fully Connected", "Sigmoid", dynamic=dynamic)
    assert {e.name for e in operators} == {str(n) for n in range(len({e.name for e in operators}))}


def test_operators_of_shared_weights(monkeypatch):
    monkeypatch.setattr(runtime, "LARGE", 1)
    assert_operators("xnnpack", "Convolution", "Fully Connected")


def test_table():
    assert_table("xnnpack")


def test_without_the_profiler(monkeypatch):
    """Another version of LiteRT reports nothing, and everything else works."""
    program = lowered("xnnpack")
    program(image(2))
    monkeypatch.setattr(runtime, "library", lambda: None)
    with program.profile(inner=True) as profile:
        program(image(2))
    (timing,) = profile.timings
    assert profile.operators_of(timing) == ()
