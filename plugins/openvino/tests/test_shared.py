"""The tests that every backend of a plugin has to pass, with what OpenVINO answers."""

from __future__ import annotations

import pytest
from delegate_openvino.deviations import DEVIATIONS

from tests.support import unfortunate_sizes
from tests.support.cases import long_sums, planted
from tests.support.probes import PROBES, Probe, unprobed
from tests.support.shared_tests import *  # noqa: F403

BACKEND = "openvino"
ANY_BIAS = True  # OpenVINO adds biases in floats
EMPTY_SIZES = {"mean": "", "matrix product": "", "batched product": "", "attention": ""}  # wrong over nothing
FEW_ELEMENTS = {("mask", "scatter")}  # OpenVINO runs neither the mask nor the function
# OpenVINO computes float64 in float32.
LEFT_PIXELS = {"halves that are reflected", "double", "double planes", "double exact", "a size that float32 rounds"}
SIZED_NUMBERS = {
    "part": {"runs": 33, "refused": 43, "operator": 3, "dynamic_shape": 8, "dtype": 3},
    "root": {"runs": 31, "refused": 36, "operator": 3, "dynamic_shape": 8, "dtype": 3},
    "twice": {"runs": 90, "operator": 9, "dynamic_shape": 11, "dtype": 22, "attribute": 1, "inaccurate": 9},
    "none": {"runs": 57, "operator": 5, "inaccurate": 7, "dynamic_shape": 8, "dtype": 4},
}
PLANTED = planted.cases(BACKEND, 3)
OWN_PROBES = [probe for probe in PROBES if probe.backend == BACKEND]


def test_two_to_the_power_of_25_ones() -> None:
    """OpenVINO alone returns a mean of 0.5."""
    assert long_sums.errors(BACKEND, {"mean": long_sums.LINEAR["mean"]}, (1 << 25,)) == {}


# Variances of dynamic sizes stay as OpenVINO computes them, which is 6e-6 off here.
@pytest.mark.parametrize("name", sorted(long_sums.DYNAMIC.keys() - {"variance of all beside a long size"}))
def test_long_sums_of_dynamic_sizes(name: str) -> None:
    long_sums.check_dynamic(BACKEND, long_sums.DYNAMIC[name])


@pytest.mark.parametrize(("scheme", "name"), unfortunate_sizes.cases(BACKEND))
def test_no_default_of_a_scheme_refuses(scheme: str, name: str) -> None:
    unfortunate_sizes.check_defaults(BACKEND, scheme, name)


@pytest.mark.parametrize(
    ("where", "model", "fault"), [PLANTED[0], *(pytest.param(*c, marks=pytest.mark.slow) for c in PLANTED[1:])]
)
def test_the_debugger_finds_a_changed_operator(where: str, model: str, fault: str) -> None:
    planted.assert_found(where, model, fault)


@pytest.mark.parametrize("probe", OWN_PROBES, ids=lambda probe: probe.operator)
def test_the_library_alone_differs(probe: Probe) -> None:
    assert probe.differs()


def test_every_rewritten_row_has_a_probe() -> None:
    assert len(OWN_PROBES) > 2
    assert unprobed(BACKEND, DEVIATIONS) == []
