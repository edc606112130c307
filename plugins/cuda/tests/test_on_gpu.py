"""The backend cuda on a GPU of NVIDIA's, or on the one that test_software.py has the CPU play."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import delegate
from tests.support.lowering import assert_runs, compiled, relative_error

from .cases import frozen

pytest.importorskip("tvm", reason="TVM is not installed: pip install delegate-cuda")

from delegate_cuda.aot import schedules
from delegate_cuda.runtime import library
from delegate_cuda.runtime.library import CudaTarget

from delegate.errors import BackendUnavailable
from tests.support.functions import Function

from .precision import PRODUCTS, Rounded, lower_function

try:
    GPU = library.local_gpu()[0]
except BackendUnavailable:
    GPU = CudaTarget("")

pytestmark = pytest.mark.skipif(not GPU.arch, reason="no NVIDIA GPU is here, nor one played by software")
PRECISIONS = ["float32", "tf32", "float16", "bfloat16"]


def on_gpu(function, args, precision="float32"):
    program = lower_function(function, args, precision, GPU.arch)
    assert [p.backend for p in program.report.partitions] == ["cuda"]
    return program


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["linear", "convolution", "too small to gain"])
def test_products(name, precision):
    function, args = PRODUCTS[name]
    with torch.no_grad(), Rounded(precision):
        expected = function(*args)
    # Tensor cores sum products of TF32 in fewer bits than float32: 4e-6 on an H100.
    assert relative_error(on_gpu(function, args, precision)(*args), expected) < (1e-5 if precision == "tf32" else 2e-6)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 2e-6), ("tf32", 1e-3), ("bfloat16", 8e-3)])
def test_attention(precision, tolerance):
    function, args = PRODUCTS["attention"]
    assert relative_error(on_gpu(function, args, precision)(*args), function(*args)) < tolerance


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("rule", list(schedules.rules(CudaTarget(GPU.arch or "sm_90", tf32=True))))
def test_every_schedule_of_a_product(monkeypatch, rule, precision):
    """What tuning may choose is right, whichever it is."""
    function, args = frozen(nn.Linear(80, 144)), (torch.randn(150, 80),)
    tried, by_default = [], schedules.by_default

    def chosen(given, target):
        found = schedules.rules(target).get(rule)
        made = None if found is None else schedules.apply_rule(found, given, target)
        tried.append(made is not None)
        return by_default(given, target) if made is None else made

    monkeypatch.setattr(schedules, "by_default", chosen)
    program = on_gpu(function, args, precision)
    if not any(tried):
        pytest.skip(f"{rule} is not for this")
    with torch.no_grad(), Rounded(precision):
        expected = function(*args)
    assert relative_error(program(*args), expected) < 2e-6


def test_steps_within_steps():
    """dlight's rules take no uneven pool; what none takes would run on the host, over the GPU's memory."""
    x = torch.randn(2, 8, 6, 6)
    program = on_gpu(lambda x: F.adaptive_avg_pool2d(x, (4, 5)), (x,))
    assert relative_error(program(x), F.adaptive_avg_pool2d(x, (4, 5))) < 1e-6


FUSED = {  # with a product, by the kernel of the product: what is read or written beside it has another dtype
    "mask": lambda product, other: torch.where(other > 0, product, -1.0),
    "bool": lambda product, other: torch.where(other, product, -1.0),
    "int32": lambda product, other: product + other.float(),
    "int64": lambda product, other: product + other.float(),
    "float16": lambda product, other: product + other.float(),
    "bfloat16": lambda product, other: product + other.float(),
}


@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
@pytest.mark.parametrize("name", FUSED)
def test_what_is_fused_with_a_product_has_any_dtype(name, precision):
    """Kernels read several neighbours at once: each dtype has a vector type of its own in CUDA."""
    x, w, other = torch.randn(128, 96), torch.randn(96, 128), torch.randint(0, 2, (128, 128))
    given = other.to(getattr(torch, name, torch.float32))

    def function(x, w, other):
        return FUSED[name](x @ w, other)

    with torch.no_grad(), Rounded(precision):
        expected = function(x, w, given)
    assert relative_error(on_gpu(function, (x, w, given), precision)(x, w, given), expected) < 1e-5


class _Around(nn.Module):
    def forward(self, x):
        y = x.exp() * 2
        return y.cumprod(1) + y.sum(), y.sin()


def test_tensors_stay_on_the_gpu(tmp_path):
    x = torch.randn(4, 40)
    config = {"backends": [{"name": "cuda", "exclude": ["aten.cumprod"]}]}
    program = compiled(_Around(), (x,), config=config, portable={"aten.cumprod.default": 1})
    assert len(program.report.partitions) == 2
    program.save(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg", trust_code=True) as loaded:
        for _ in range(2):
            made = loaded.method("forward").run([x.numpy()])
            for got, wanted in zip(made, _Around()(x), strict=True):
                assert relative_error(got, wanted) < 2e-6


def test_sizes_that_change():
    module, batch = Function(frozen(nn.Linear(80, 144))), torch.export.Dim("batch", min=1, max=64)
    config = {"backends": [{"name": "cuda"}]}
    program = compiled(module, (torch.randn(5, 80),), config=config, dynamic_shapes=(({0: batch},),))
    assert_runs(program, "cuda")
    for size in (5, 1, 64):
        x = torch.randn(size, 80)
        assert relative_error(program(x), module(x)) < 2e-6
