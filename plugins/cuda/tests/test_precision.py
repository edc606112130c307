"""Option `precision` of the backend cuda: what is rounded, what is summed up in float32, and what lies in the file."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from delegate_cuda.runtime.library import CudaTarget
from torch import nn

from delegate.errors import LoweringError
from tests.support.cases.operators import Constant
from tests.support.lowering import assert_same, relative_error

from .cases import frozen
from .precision import PRODUCTS, Rounded, lower_function, round_to

pytest.importorskip("tvm", reason="TVM is not installed: pip install delegate-cuda")
import tvm_ffi
from delegate_cuda.aot import rounding, schedules, wmma
from delegate_cuda.aot.schedules import by_default

from tests.support.sampling import every

torch.manual_seed(0)
X, Y = torch.randn(3, 32, 64), torch.randn(3, 64, 48)
IMAGE = torch.randn(2, 8, 10, 10)
HEADS = tuple(torch.randn(2, 4, 20, 16) for _ in range(3))
CASES = {
    "linear": (frozen(nn.Linear(64, 96)), (X,)),
    "linear of an activation": (F.linear, (X[0], X[1])),
    "mm": (torch.mm, (X[0], Y[0])),
    "bmm": (torch.bmm, (X, Y)),
    "matmul": (torch.matmul, (X, Y[0])),
    "addmm": (lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), (torch.randn(48), X[0], Y[0])),
    "baddbmm": (lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2), (torch.randn(48), X, Y)),
    "convolution": (frozen(nn.Conv2d(8, 16, 3, 2, 1)), (IMAGE,)),
    "convolution in groups": (frozen(nn.Conv2d(8, 16, 3, groups=4)), (IMAGE,)),
    "convolution over 1 dimension": (frozen(nn.Conv1d(32, 16, 3)), (X,)),
    "convolution, transposed": (frozen(nn.ConvTranspose2d(8, 4, 3, 2)), (IMAGE,)),
    "more than products": (frozen(nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.GELU())), (X,)),
}
DTYPES = ("float16", "bfloat16")
PRECISIONS = (*DTYPES, "tf32")
nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", every(5, CASES))
def test_operands_are_rounded_and_sums_are_not(name, precision):
    function, args = CASES[name]
    with torch.no_grad(), Rounded(precision):
        expected = function(*args)
    assert relative_error(expected, function(*args)) > 1e-5  # else nothing is rounded
    assert relative_error(lower_function(function, args, precision)(*args), expected) < 2e-6


@pytest.mark.parametrize("causal", every(2, [False, True]))
@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 5e-4), ("bfloat16", 2e-3), ("tf32", 5e-4)])
def test_attention(precision, tolerance, causal):
    query, key, value = (round_to(x, precision) for x in HEADS)
    scores = query @ key.mT / 4
    if causal:
        scores += torch.full((20, 20), -torch.inf).triu(1)
    expected = round_to(scores.softmax(-1), precision) @ value
    program = lower_function(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), HEADS, precision
    )
    # a weight at the border between two narrow numbers may be rounded otherwise
    assert relative_error(program(*HEADS), expected) < tolerance
    assert relative_error(program(*HEADS), F.scaled_dot_product_attention(*HEADS, is_causal=causal)) > 1e-5


@pytest.mark.parametrize("precision", DTYPES)
def test_weights_of_products_take_half_of_the_file(precision, tmp_path):
    weight, sizes = torch.randn(1024, 256), {}
    for dtype in ("float32", precision):
        program = lower_function(frozen(nn.Linear(256, 1024, bias=False)), (torch.randn(2, 256),), dtype)
        program.save(tmp_path / f"{dtype}.dlg")
        sizes[dtype] = (tmp_path / f"{dtype}.dlg").stat().st_size
    assert sizes["float32"] - sizes[precision] == pytest.approx(weight.nbytes / 2, rel=0.05)


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_a_weight_that_is_used_elsewhere_stays_as_it_is(precision):
    weight = torch.randn(64, 64)
    function = Constant(lambda x, w: x @ w + w.exp(), weight)
    with torch.no_grad(), Rounded(precision):
        expected = function(X[0, :1])
    assert relative_error(lower_function(function, (X[0, :1],), precision)(X[0, :1]), expected) < 2e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_in_16_bits_stay_as_they_are(dtype):
    module, x = frozen(nn.Linear(64, 96)).to(getattr(torch, dtype)), X.to(getattr(torch, dtype))
    plain, other = (lower_function(module, (x,), precision)(x) for precision in ("float32", "bfloat16"))
    assert torch.equal(plain, other)


def test_numbers_at_the_borders_of_tf32():
    nan, inf, step = torch.nan, torch.inf, 2.0**-10
    given = [0.0, 1 + step / 2, 1 + step * 0.49, -1 - step * 1.5, 2.0**-140, inf, -inf, nan]
    expected = [0.0, 1 + step, 1.0, -1 - 2 * step, 0.0, inf, -inf, nan]
    x, one = torch.tensor([given]).T, torch.ones(1, 1)
    for made in (lower_function(torch.mm, (x, one), "tf32")(x, one), rounding.constant(x, "tf32")):
        assert_same(made, torch.tensor([expected]).T, tolerance=0)


def test_weights_are_rounded_to_tf32_when_compiled(monkeypatch):
    later: list[Any] = []
    monkeypatch.setattr(rounding, "factor", lambda importer, value: later.append(value) or value)
    lower_function(frozen(nn.Linear(64, 96)), (X,), "tf32")
    assert [[int(size) for size in value.ty.shape] for value in later] == [[3, 32, 64]]


def test_tf32_is_refused_before_sm_80():
    with pytest.raises(
        LoweringError, match=r"sm_75 cannot multiply in tf32: .*from sm_80 on.*: give precision: float16"
    ):
        lower_function(torch.mm, (X[0], Y[0]), "tf32", "sm_75")


def test_tensor_cores_are_left_alone_where_tvm_would_crash(monkeypatch):
    rules = schedules.rules(CudaTarget("sm_80"))
    monkeypatch.setattr(metadata, "version", lambda package: "0.1.15.post2")
    assert {n for n in rules if n.startswith("tensor cores")} == set(rules) - set(schedules.rules(CudaTarget("sm_80")))


@pytest.mark.extended
@nvcc
@pytest.mark.parametrize(
    ("name", "precision", "arch", "cores"),
    [
        ("linear", "float16", "sm_80", 1),
        ("linear", "float32", "sm_80", 0),
        ("linear", "float16", "sm_75", 0),
        ("convolution", "bfloat16", "sm_90a", 1),
        pytest.param("attention", "bfloat16", "sm_80", 2, marks=pytest.mark.slow),
        ("too small to gain", "float16", "sm_80", 0),
        ("linear", "tf32", "sm_80", 1),
        ("attention", "tf32", "sm_120", 2),
    ],
)
def test_products_run_on_tensor_cores(monkeypatch, name, precision, arch, cores):
    made: list[str] = []

    def spy(function: Any, target: CudaTarget) -> Any:
        scheduled = by_default(function, target)
        made.append(scheduled.script())
        return scheduled

    monkeypatch.setattr(schedules, "by_default", spy)
    lower_function(*PRODUCTS[name], precision, arch)
    assert sum("tvm_mma_sync" in script for script in made) == cores
    assert all("threadIdx.x" in script for script in made)
    assert cores or any("threadIdx.y" in script for script in made)  # a product's own schedule, not any function's


@pytest.mark.extended
@nvcc
@pytest.mark.parametrize("name", ["convolution", "linear"])
def test_the_instructions_are_those_of_tf32(monkeypatch, tmp_path, name):
    sources: list[str] = []
    correct = wmma._correct
    monkeypatch.setattr(wmma, "_correct", lambda *given: sources.append(correct(*given)) or sources[-1])
    lower_function(*PRODUCTS[name], "tf32", "sm_80")
    assert tvm_ffi.get_global_func(wmma._POSTPROC, allow_missing=True) is None
    (tmp_path / "made.cu").write_text(sources[0])
    subprocess.run(["nvcc", "-ptx", "-arch=sm_80", "-o", "made.ptx", "made.cu"], cwd=tmp_path, check=True)
    assert "wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32" in (tmp_path / "made.ptx").read_text()
