"""Operators with generated attributes, static and dynamic, on real backends against eager.

The kit tries a few of every family on a backend, the same at every run; `make test-slow` many, and `make wild` more.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from delegate_testing.generated.check import FAMILIES, check, comparison_property
from delegate_testing.generated.sample import FunctionSample

from tests.support.availability import require
from tests.support.lowering import answers, refused
from tests.support.sampling import every

# Largest error over the largest value; emulators of devices compute in float16, or are slow, or take no dynamic sizes.
TOLERANCE = {"portable": 1e-4, "xnnpack": 1e-4, "dsp": 1e-2, "webgpu": 1e-3, "cuda": 1e-4}
# What `check` is told where it is not the name; cuda compiles for the host's CPU.
BACKENDS: dict[str, Any] = {"portable": [], "cuda": {"backends": [{"name": "cuda", "options": {"arch": "llvm"}}]}}


SAMPLES = 4  # of a family in the default run
# Backend -> family -> how many nodes of these samples the backend runs, and how many it refuses for each reason. The
# samples are the same in every run, so that a backend that stops taking an operator fails here.
EXPECTED: dict[str, dict[str, dict[str, int]]] = {
    "xnnpack": {
        "pools": {"runs": 8, "operator": 3},
        "pads": {"runs": 25, "refused": 1, "operator": 2, "border": 1},
        "programs": {"runs": 19},
    },
    "dsp": {
        "pools": {"runs": 9, "dtype": 1, "rank": 1},
        "pads": {"runs": 18, "operator": 1},
        "programs": {"runs": 22},
    },
    "webgpu": {
        "pools": {"runs": 10, "dtype": 1},
        "pads": {"runs": 3, "refused": 1},
        "programs": {"runs": 19},
    },
    "cuda": {
        "pools": {"runs": 9, "operator": 2},
        "pads": {"runs": 26, "border": 1, "operator": 2},
        "programs": {"runs": 16, "refused": 3},
    },
}


def compare_samples(backend: str, family: str, examples: int) -> tuple[Counter[str], Counter[str]]:
    """Compare samples of a family with eager, and count their nodes.

    Returns:
        How many nodes the backend runs ("runs"), and how many it refuses for each reason; the refused nodes of each
        operator.
    """
    found: Counter[str] = Counter()
    left: Counter[str] = Counter()

    def observe(*args: Any, **kwargs: Any) -> None:
        program = check(*args, **kwargs)
        found.update(answers(program, backend))
        left.update(refused(program, backend))

    given, dynamic = BACKENDS.get(backend, backend), backend != "dsp"
    comparison_property(family, given, TOLERANCE[backend], examples, dynamic=dynamic, check=observe)()
    return found, left


@pytest.mark.extended
@pytest.mark.parametrize(("backend", "family"), every(4, EXPECTED, ["pools", "pads", "programs"]))
def test_devices(backend, family):
    require(backend)
    found, left = compare_samples(backend, family, SAMPLES)
    assert found == EXPECTED[backend][family], f"{backend} refuses {dict(left)}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "examples"), [("portable", 300), ("xnnpack", 300), ("dsp", 60), ("webgpu", 60), ("cuda", 60)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_sweep(backend, examples, family):
    require(backend)
    found, left = compare_samples(backend, family, int(os.environ.get("EXAMPLES", examples)))
    assert found["runs"] > 0, f"{backend} refuses {dict(left)}"


def test_the_property_can_fail():
    """A wrong answer, and a size that is taken though the exported module refuses it, are found."""
    wrong = FunctionSample("wrong", _wrong, [(3,)])
    with pytest.raises(AssertionError, match="relative error"):
        check(wrong, "xnnpack", 1e-4)


class _Fickle:
    """Adds another number at every call."""

    calls = 0.0


def _wrong(x: Any) -> Any:
    _Fickle.calls += 1
    return x + _Fickle.calls
