"""Option `precision` of the engine cuda: what is rounded, what is summed up in float32, and what lies in the file."""

from __future__ import annotations

import shutil
from importlib import metadata
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from delegate.backends.gpu.cuda.operators import OPERATORS
from delegate.backends.gpu.cuda.targets import Target
from delegate.errors import ConfigError
from tests.backends.gpu.cases import frozen
from tests.backends.onnx.cases import Constant
from tests.lowering import compiled, relative_error

pytest.importorskip("tvm", reason="TVM is not installed: pip install 'delegate[cuda]'")

from delegate.backends.gpu.cuda import schedules
from delegate.backends.gpu.cuda.schedules import by_default

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
nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")


class Rounded(TorchDispatchMode):
    """Has torch round the operands of products, and compute in float32 as ever."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        row = OPERATORS.get(str(func))
        names = row.products if row is not None else ()
        given = [
            value.to(self._dtype).float() if argument.name in names else value
            for argument, value in zip(func._schema.arguments, args, strict=False)
        ]
        return func(*given, **(kwargs or {}))


class Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def lowered(function: Any, args: tuple[torch.Tensor, ...], precision: str, arch: str = "llvm") -> Any:
    options = {"engine": "cuda", "cuda": {"arch": arch, "precision": precision}}
    program = compiled(Call(function), args, config={"backends": [{"name": "gpu", "options": options}]})
    assert {n.backend for n in program.report.nodes} == {"gpu"}
    return program


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_operands_are_rounded_and_sums_are_not(name, precision):
    function, args = CASES[name]
    with torch.no_grad(), Rounded(getattr(torch, precision)):
        expected = function(*args)
    assert relative_error(expected, function(*args)) > 1e-5  # else nothing is rounded
    assert relative_error(lowered(function, args, precision)(*args), expected) < 2e-6


@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 1e-3), ("bfloat16", 8e-3)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(precision, tolerance, causal):
    def narrow(x):
        return x.to(getattr(torch, precision)).float()

    query, key, value = map(narrow, HEADS)
    scores = query @ key.mT / 4
    if causal:
        scores += torch.full((20, 20), -torch.inf).triu(1)
    expected = narrow(scores.softmax(-1)) @ value
    program = lowered(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), HEADS, precision)
    # a weight at the border between two numbers of 16 bits may be rounded otherwise
    assert relative_error(program(*HEADS), expected) < tolerance
    assert relative_error(program(*HEADS), F.scaled_dot_product_attention(*HEADS, is_causal=causal)) > 1e-5


@pytest.mark.parametrize("precision", DTYPES)
def test_weights_of_products_take_half_of_the_file(precision, tmp_path):
    weight, sizes = torch.randn(1024, 256), {}
    for dtype in ("float32", precision):
        program = lowered(frozen(nn.Linear(256, 1024, bias=False)), (torch.randn(2, 256),), dtype)
        program.save(tmp_path / f"{dtype}.dlg")
        sizes[dtype] = (tmp_path / f"{dtype}.dlg").stat().st_size
    assert sizes["float32"] - sizes[precision] == pytest.approx(weight.nbytes / 2, rel=0.05)


def test_a_weight_that_is_used_elsewhere_stays_as_it_is():
    weight = torch.randn(64, 64)
    function = Constant(lambda x, w: x @ w + w.exp(), weight)
    with torch.no_grad(), Rounded(torch.bfloat16):
        expected = function(X[0, :1])
    assert relative_error(lowered(function, (X[0, :1],), "bfloat16")(X[0, :1]), expected) < 2e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_in_16_bits_stay_as_they_are(dtype):
    module, x = frozen(nn.Linear(64, 96)).to(getattr(torch, dtype)), X.to(getattr(torch, dtype))
    plain, other = (lowered(module, (x,), precision)(x) for precision in ("float32", "bfloat16"))
    assert torch.equal(plain, other)


def test_tf32_is_refused():
    with pytest.raises(ConfigError, match=r"TVM 0.27 has no instructions.*tf32: take bfloat16, float16 or float32"):
        lowered(torch.mm, (X[0], Y[0]), "tf32")


def test_tensor_cores_are_left_alone_where_tvm_would_crash(monkeypatch):
    rules = schedules.rules(Target("sm_80"))
    monkeypatch.setattr(metadata, "version", lambda package: "0.1.15.post2")
    assert {n for n in rules if n.startswith("tensor cores")} == set(rules) - set(schedules.rules(Target("sm_80")))


PRODUCTS = {
    "linear": (frozen(nn.Linear(384, 512)), (torch.randn(197, 384),)),
    "convolution": (frozen(nn.Conv2d(96, 128, 3, padding=1)), (torch.randn(1, 96, 28, 28),)),
    "attention": (F.scaled_dot_product_attention, tuple(torch.randn(1, 3, 197, 64) for _ in range(3))),
    "too small to gain": (torch.mm, (torch.randn(128, 64), torch.randn(64, 32))),
}


@nvcc
@pytest.mark.parametrize(
    ("name", "precision", "arch", "cores"),
    [
        ("linear", "float16", "sm_80", 1),
        ("linear", "float32", "sm_80", 0),
        ("linear", "float16", "sm_75", 0),
        ("convolution", "bfloat16", "sm_90a", 1),
        ("attention", "bfloat16", "sm_80", 2),
        ("too small to gain", "float16", "sm_80", 0),
    ],
)
def test_products_run_on_tensor_cores(monkeypatch, name, precision, arch, cores):
    made: list[str] = []

    def spy(function: Any, target: Target) -> Any:
        scheduled = by_default(function, target)
        made.append(scheduled.script())
        return scheduled

    monkeypatch.setattr(schedules, "by_default", spy)
    lowered(*PRODUCTS[name], precision, arch)
    assert sum("tvm_mma_sync" in script for script in made) == cores
    assert all("threadIdx.x" in script for script in made)
    assert cores or any("threadIdx.y" in script for script in made)  # a product's own schedule, not any function's
