"""Tables of tests/support/cases on the built-in backends: as in eager, whatever runs an operator."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.availability import require
from tests.support.cases import cores, eager, float_environment, resizing
from tests.support.cases.attention import Case, cases, compare
from tests.support.cases.long_sums import (
    DYNAMIC,
    LINEAR,
    NORMALIZATIONS,
    OTHERS,
    SCANS,
    SHAPES,
    check_dynamic,
    errors,
)
from tests.support.cases.rounding import check_kept, check_shown, check_steps
from tests.support.sampling import every

BACKENDS = {"portable": [], "xnnpack": ["xnnpack"], "webgpu": ["webgpu"]}
CPU = ["portable", "xnnpack"]
PIXELS = [*CPU, pytest.param("webgpu", marks=pytest.mark.slow)]
PIXELS_ON_XNNPACK = {"rows", "columns", "rows exact", "columns exact", "factors", "factors exact", "half"}
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="masks, control groups and glibc are Linux's")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", eager.BOUNDS.functions)
def test_bounds_after_bounds(name: str, backend: str) -> None:
    require(backend)
    assert bool(eager.BOUNDS.compare(name, BACKENDS[backend])) is (backend != "portable")


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("name", eager.SLICES.functions)
def test_slices_between_numbers_of_the_data(name: str, backend: str, dynamic: bool) -> None:
    require(backend)
    ran = eager.SLICES.compare(name, BACKENDS[backend], dynamic=dynamic)
    assert bool(ran) == (backend == "xnnpack") or name not in ("computed after", "reduced")


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", eager.TIES.functions)
def test_positions_of_equal_elements(name: str, backend: str, dynamic: bool) -> None:
    require(backend)
    ran = eager.TIES.compare(name, BACKENDS[backend], dynamic=dynamic)
    assert bool(ran) or name != "max after an operator" or backend == "portable"


@pytest.mark.parametrize("backend", PIXELS)
@pytest.mark.parametrize("name", resizing.CASES)
def test_pixels(name: str, backend: str) -> None:
    require(backend)
    ran = resizing.compare_pixels(name, BACKENDS[backend])
    assert ran or backend != "xnnpack" or name not in PIXELS_ON_XNNPACK


@pytest.mark.parametrize("backend", PIXELS)
@pytest.mark.parametrize("name", resizing.DYNAMIC)
def test_pixels_of_dynamic_sizes(name: str, backend: str) -> None:
    require(backend)
    ran = resizing.compare_sizes(name, BACKENDS[backend])
    assert not ran or backend != "portable"


@pytest.mark.parametrize("dtype", eager.TRUTHS, ids=str)
def test_numbers_as_booleans_on_kernels(dtype: torch.dtype) -> None:
    assert eager.compare_truths(dtype, {"backends": []}) == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", eager.TRUTHS, ids=str)
def test_numbers_as_booleans_on_cuda(dtype: torch.dtype) -> None:
    assert "aten.any.dim" in eager.compare_truths(dtype, {"backends": [{"name": "cuda", "options": {"arch": "llvm"}}]})


@only_linux
@pytest.mark.parametrize("limit", cores.LIMITS)
@pytest.mark.parametrize("backend", CPU)
def test_one_core(backend: str, limit: str, tmp_path: Path) -> None:
    """Threads stay inside the affinity mask and the quota of the process."""
    require(backend)
    cores.check(BACKENDS[backend], limit, tmp_path)


@only_linux
@pytest.mark.extended
@pytest.mark.parametrize("environment", float_environment.ENVIRONMENTS)
@pytest.mark.parametrize("backend", CPU)
def test_the_float_environment_is_kept(backend: str, environment: str, tmp_path: Path) -> None:
    """Check the caller's rounding and flush to zero after import, compile, load, call and close."""
    require(backend)
    float_environment.check(BACKENDS[backend], environment, tmp_path, keeps_subnormal=backend != "xnnpack")


HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", every(2, HALVES), ids=str)
@pytest.mark.parametrize("backend", ["xnnpack", "cuda"])
def test_wider_dtypes_show_rounded_results(backend, dtype):
    """They were numbers of float32: 70000.0 in place of infinity."""
    require(backend)
    check_shown(backend, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_steps_show_rounded_results(dtype):
    """TVM drops casts to bfloat16 within a function."""
    require("cuda")
    check_steps("cuda", dtype)


@pytest.mark.parametrize("backend", ["xnnpack", "cuda"])
def test_other_casts_stay(backend):
    require(backend)
    check_kept(backend)


# Sums that need static sizes on XNNPACK, or do not run there at all.
STATIC = {"pool to as many rows", "pool to as many columns as rows", "variance", "running sum"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backend", ["", "xnnpack"])
def test_long_sums(backend: str, shape: tuple[int, ...]) -> None:
    assert errors(backend, {**LINEAR, **OTHERS, **NORMALIZATIONS, **(SCANS if not backend else {})}, shape) == {}


@pytest.mark.parametrize("name", sorted(DYNAMIC.keys() - STATIC))
def test_long_sums_of_dynamic_sizes(name: str) -> None:
    check_dynamic("xnnpack", DYNAMIC[name])


CONFIGS: Mapping[str, dict[str, Any]] = {
    "portable": {"backends": []},
    "xnnpack": {"backends": ["xnnpack"]},
    "webgpu": {"backends": ["webgpu"]},
    "cuda": {"backends": [{"name": "cuda", "options": {"arch": "llvm"}}]},
}


@pytest.mark.parametrize("case", [*cases(long=False)], ids=str)
@pytest.mark.parametrize("backend", [pytest.param(b, marks=pytest.mark.slow if b == "webgpu" else ()) for b in CONFIGS])
def test_attention(backend: str, case: Case) -> None:
    require(backend)
    assert bool(compare(case, CONFIGS[backend])) is (backend != "portable")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_attention_of_a_larger_grid(backend: str) -> None:
    for case in cases(long=True):
        assert bool(compare(case, CONFIGS[backend])) is (backend != "portable"), case
