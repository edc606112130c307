"""The tests that every backend of a plugin has to pass. A test module of the plugin imports all of them.

The module has these names:

    BACKEND         the backend
    ANY_BIAS        whether it runs layers whose biases exceed 32 bits in steps of their operands
    EMPTY_SIZES     case of `empty_sizes` -> the operators that the backend runs, where these are not all
    FEW_ELEMENTS    the cases of `few_elements` that the backend leaves to kernels
    LEFT_PIXELS     the cases of `resizing` that it leaves to kernels
    SIZED_NUMBERS   case of `sized_numbers` -> how many nodes it runs, and how many it refuses for each reason
    PLANTED         the cases of `planted`
    DEVIATIONS      the backend's table of deviations
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.support import unfortunate_sizes
from tests.support.cases import (
    attention,
    biases,
    casts,
    choices,
    cores,
    eager,
    empty_sizes,
    few_elements,
    float_environment,
    inner_operators,
    joined_ranges,
    long_sums,
    planted,
    resizing,
    sized_numbers,
    tested_values,
)
from tests.support.placing import few_rounds  # noqa: F401 - a fixture
from tests.support.probes import PROBES, Probe, unprobed
from tests.support.replays import MODELS, check_measured, check_preferred
from tests.support.sampling import every, only
from tests.support.whole_models import QUICK, check

_IS_DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
_ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="of Linux: masks, control groups and calls of glibc")


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """The backend of the test module."""
    return str(request.module.BACKEND)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the tests whose cases depend on the backend of the module."""
    test, module = metafunc.function, metafunc.module
    if test is test_no_default_of_a_scheme_refuses:
        metafunc.parametrize(("scheme", "name"), unfortunate_sizes.cases(module.BACKEND))
    elif test is test_the_debugger_finds_a_changed_operator:
        first, *others = module.PLANTED
        cases = [first, *(pytest.param(*case, marks=pytest.mark.slow) for case in others)]
        metafunc.parametrize(("where", "model", "fault"), cases)
    elif test is test_the_library_alone_differs:
        metafunc.parametrize("probe", _probes_of(module.BACKEND), ids=lambda probe: probe.operator)


def _probes_of(backend: str) -> list[Probe]:
    return [probe for probe in PROBES if probe.backend == backend]


# -- results are those of eager


@pytest.mark.parametrize("case", [*attention.cases(long=False)], ids=str)
def test_attention(case: attention.Case, backend: str) -> None:
    assert "aten." in "".join(attention.compare(case, {"backends": [backend]}))


@pytest.mark.slow
def test_all_attention(backend: str) -> None:
    for case in attention.cases(long=True):
        assert attention.compare(case, {"backends": [backend]}), case


@pytest.mark.parametrize("name", eager.BOUNDS.functions)
def test_bounds_after_bounds(name: str, backend: str) -> None:
    assert eager.BOUNDS.compare(name, [backend])


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("name", every(3, biases.SCALES))
def test_biases_beyond_32_bits(
    name: str, kind: str, per_channel: bool, backend: str, request: pytest.FixtureRequest
) -> None:
    biases.check(backend, name, kind, per_channel, any_size=request.module.ANY_BIAS)


@pytest.mark.parametrize("name", [*casts.SIGNS, "all"])
def test_signs_of_casts(name: str, backend: str) -> None:
    casts.check_signs(backend, name)


@_IS_DYNAMIC
@pytest.mark.parametrize("name", ["end", "computed after", "reduced", "joined"])
def test_slices_with_computed_bounds(name: str, dynamic: bool, backend: str) -> None:
    ran = eager.SLICES.compare(name, [backend], dynamic=dynamic)
    assert ran or name not in ("computed after", "reduced")


@pytest.mark.parametrize("case", empty_sizes.CASES)
def test_sizes_of_zero(case: str, backend: str, request: pytest.FixtureRequest) -> None:
    runs = {**empty_sizes.ALL, **request.module.EMPTY_SIZES}
    assert empty_sizes.compare(case, {"backends": [backend]}) == runs[case]


@pytest.mark.parametrize("case", every(9, [(case,) for case in few_elements.CASES]), ids=str)
def test_few_elements(case: tuple[str, str], backend: str, request: pytest.FixtureRequest) -> None:
    program = few_elements.compare(case, {"backends": [backend], "partitioning": {"min_partition_size": 0}})
    assert any(n.backend == backend for n in program.report.nodes) == (case not in request.module.FEW_ELEMENTS)


@pytest.mark.parametrize("case", every(13, [(case,) for case in few_elements.WITH_ANY_ROWS]), ids=str)
def test_rows_of_any_number(case: tuple[str, str], backend: str) -> None:
    config = {"backends": [backend], "partitioning": {"min_partition_size": 0}}
    program = few_elements.compare(case, config, dynamic=True)
    assert any(node.backend == backend for node in program.report.nodes)


@pytest.mark.parametrize("name", ["cat", "of views", "of a cat", "moved", "stack", "where"])
def test_small_values_of_joined_ranges_keep_their_bits(name: str, backend: str) -> None:
    assert joined_ranges.noise_of_small_values(name, backend) > 30


@pytest.mark.parametrize("shape", long_sums.SHAPES, ids=str)
def test_long_sums(shape: tuple[int, ...], backend: str) -> None:
    cases = {**long_sums.LINEAR, **long_sums.OTHERS, **long_sums.NORMALIZATIONS, **long_sums.SCANS}
    assert long_sums.errors(backend, cases, shape) == {}


@pytest.mark.parametrize("name", resizing.CASES)
def test_pixels(name: str, backend: str, request: pytest.FixtureRequest) -> None:
    assert bool(resizing.compare_pixels(name, [backend])) != (name in request.module.LEFT_PIXELS)


@pytest.mark.parametrize("name", resizing.DYNAMIC)
def test_pixels_of_dynamic_sizes(name: str, backend: str) -> None:
    assert resizing.compare_sizes(name, [backend]) == resizing.DYNAMIC[name][2]


@pytest.mark.parametrize("case", only(["none"], sized_numbers.CASES))
def test_numbers_of_dynamic_sizes(case: str, backend: str, request: pytest.FixtureRequest) -> None:
    sized_numbers.compare(case, backend, request.module.SIZED_NUMBERS[case])


def test_what_programs_test_for_is_kept(backend: str) -> None:
    assert tested_values.differences(backend) == set()


@_IS_DYNAMIC
@pytest.mark.parametrize("name", eager.TIES.functions)
def test_positions_of_equal_elements(name: str, dynamic: bool, backend: str) -> None:
    ran = eager.TIES.compare(name, [backend], dynamic=dynamic)
    assert not name.startswith(("max", "min", "arg")) or ran


@pytest.mark.parametrize("dtype", eager.TRUTHS, ids=str)
def test_numbers_as_booleans(dtype: torch.dtype, backend: str) -> None:
    assert "aten.any.dim" in eager.compare_truths(dtype, {"backends": [backend]})


@pytest.mark.parametrize("name", QUICK)
def test_whole_models(name: str, tmp_path: Path, backend: str) -> None:
    check(name, backend, tmp_path, 2e-6)


def test_no_default_of_a_scheme_refuses(scheme: str, name: str, backend: str) -> None:
    unfortunate_sizes.check_defaults(backend, scheme, name)


# -- faults and deviations are known


def test_the_debugger_finds_a_changed_operator(where: str, model: str, fault: str) -> None:
    planted.assert_found(where, model, fault)


def test_the_library_alone_differs(probe: Probe) -> None:
    assert probe.differs()


def test_every_rewritten_row_has_a_probe(backend: str, request: pytest.FixtureRequest) -> None:
    assert len(_probes_of(backend)) > 2
    assert unprobed(backend, request.module.DEVIATIONS) == []


# -- the library leaves the process, and the project's own tools, as they are


@_ON_LINUX
@pytest.mark.parametrize("limit", cores.LIMITS)
def test_threads_stay_within_the_cores(limit: str, tmp_path: Path, backend: str) -> None:
    cores.check([backend], limit, tmp_path)


@_ON_LINUX
@pytest.mark.parametrize("environment", float_environment.ENVIRONMENTS)
def test_rounding_and_flush_to_zero_are_kept(environment: str, tmp_path: Path, backend: str) -> None:
    float_environment.check([backend], environment, tmp_path)


def test_the_table_of_a_profile(backend: str) -> None:
    inner_operators.assert_table(backend)


@pytest.mark.parametrize("name", choices.MODELS)
def test_a_wrong_choice_is_a_fault_and_another_right_one_is_none(name: str, backend: str) -> None:
    choices.check_choices(name, backend)


_QUICK_REPLAYS = {("folded", "alone"), ("branches", "alone")}
_REPLAYS = [
    pytest.param(name, place, marks=() if (name, place) in _QUICK_REPLAYS else pytest.mark.slow)
    for name in (*MODELS, "several")
    for place in ("alone", "mixed", "default")
]


def _placements(backend: str, place: str) -> list[str] | None:
    return {"alone": [backend], "mixed": ["xnnpack", backend], "default": None}[place]


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize(("name", "place"), _REPLAYS)
def test_a_measured_plan_is_replayed(name: str, place: str, tmp_path: Path, backend: str) -> None:
    check_measured(name, _placements(backend, place), tmp_path)


@pytest.mark.parametrize(("name", "place"), _REPLAYS)
def test_a_plan_by_preference_is_replayed(name: str, place: str, tmp_path: Path, backend: str) -> None:
    check_preferred(name, _placements(backend, place), tmp_path)
