"""Operators with generated attributes, static and dynamic, on real backends against eager.

`make test` tries a few of every family, the same at every run; `make test-slow` many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.backends.onnx.test_rows import require
from tests.properties.check import check
from tests.properties.families import FAMILIES
from tests.properties.sample import Sample, vary

# Largest error over the largest value; emulators of devices compute in float16, or are slow, or take no dynamic sizes.
TOLERANCE = {"portable": 1e-4, "xnnpack": 1e-4, "dsp": 1e-2, "webgpu": 1e-3, "cuda": 1e-4}
# What `check` is told where it is not the name; cuda compiles for the host's CPU.
BACKENDS: dict[str, Any] = {"portable": [], "cuda": {"backends": [{"name": "cuda", "options": {"arch": "llvm"}}]}}


def compared(backend: str, family: str, examples: int) -> Callable[[], None]:
    """A property: samples of the family, lowered for the backend, give what eager gives."""

    @settings(
        max_examples=examples, database=None, deadline=None, derandomize=True, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(vary(FAMILIES[family], dynamic=backend != "dsp"))
    def run(sample: Sample) -> None:
        check(sample, BACKENDS.get(backend, backend), TOLERANCE[backend])

    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_xnnpack(family):
    compared("xnnpack", family, 12)()


def _require(backend: str) -> None:
    if backend == "cuda":
        pytest.importorskip("tvm_ffi", reason="TVM is not installed: pip install 'delegate[cuda]'")
    elif backend in ("dsp", "webgpu"):
        require(backend)


@pytest.mark.parametrize("backend", ["dsp", "webgpu", "cuda"])
@pytest.mark.parametrize("family", ["pools", "pads"])
def test_devices(backend, family):
    _require(backend)
    compared(backend, family, 4)()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "examples"), [("portable", 300), ("xnnpack", 300), ("dsp", 60), ("webgpu", 60), ("cuda", 60)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_sweep(backend, examples, family):
    _require(backend)
    compared(backend, family, examples)()


def test_the_property_can_fail():
    """A wrong answer, and a size that is taken though the exported module refuses it, are found."""
    wrong = Sample("wrong", _wrong, [(3,)])
    with pytest.raises(AssertionError, match="not close"):
        check(wrong, "xnnpack", 1e-4)


class _Fickle:
    """Adds another number at every call."""

    calls = 0.0


def _wrong(x: Any) -> Any:
    _Fickle.calls += 1
    return x + _Fickle.calls


def test_families_reach_the_backend():
    """What is generated is taken by XNNPACK often enough to mean something."""
    taken: list[set[str]] = []

    @settings(max_examples=30, database=None, deadline=None, derandomize=True, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.one_of(*(vary(FAMILIES[name]) for name in ("pools", "norms", "products"))))
    def run(sample: Sample) -> None:
        taken.append(check(sample, "xnnpack", 1e-4))

    run()
    assert sum("xnnpack" in backends for backends in taken) > len(taken) / 3
