"""Operators with generated attributes, static and dynamic, on real backends against eager.

The kit tries a few of every family on a backend, the same at every run; `make test-slow` many.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from delegate.testing.generated.check import check, comparison_property
from delegate.testing.generated.families import FAMILIES
from delegate.testing.generated.sample import Sample, vary
from tests.backends.onnx.test_rows import require

# Largest error over the largest value; emulators of devices compute in float16, or are slow, or take no dynamic sizes.
TOLERANCE = {"portable": 1e-4, "xnnpack": 1e-4, "dsp": 1e-2, "webgpu": 1e-3, "cuda": 1e-4}
# What `check` is told where it is not the name; cuda compiles for the host's CPU.
BACKENDS: dict[str, Any] = {"portable": [], "cuda": {"backends": [{"name": "cuda", "options": {"arch": "llvm"}}]}}


def _require(backend: str) -> None:
    if backend == "cuda":
        pytest.importorskip("tvm_ffi", reason="TVM is not installed: pip install 'delegate[cuda]'")
    elif backend in ("dsp", "webgpu"):
        require(backend)


def _compared(backend: str, family: str, examples: int) -> None:
    given = BACKENDS.get(backend, backend)
    comparison_property(family, given, TOLERANCE[backend], examples, dynamic=backend != "dsp")()


@pytest.mark.parametrize("backend", ["dsp", "webgpu", "cuda"])
@pytest.mark.parametrize("family", ["pools", "pads", "programs"])
def test_devices(backend, family):
    _require(backend)
    _compared(backend, family, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "examples"), [("portable", 300), ("xnnpack", 300), ("dsp", 60), ("webgpu", 60), ("cuda", 60)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_sweep(backend, examples, family):
    _require(backend)
    _compared(backend, family, examples)


def test_the_property_can_fail():
    """A wrong answer, and a size that is taken though the exported module refuses it, are found."""
    wrong = Sample("wrong", _wrong, [(3,)])
    with pytest.raises(AssertionError, match="relative error"):
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

    @settings(max_examples=15, database=None, deadline=None, derandomize=True, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.one_of(*(vary(FAMILIES[name]) for name in ("pools", "norms", "products"))))
    def run(sample: Sample) -> None:
        taken.append(check(sample, "xnnpack", 1e-4))

    run()
    assert sum("xnnpack" in backends for backends in taken) > len(taken) / 3
