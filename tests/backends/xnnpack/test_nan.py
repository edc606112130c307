"""NaN and infinity through XNNPACK: with `nan: exact`, the default, as eager; with `fast`, what it gives is said."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import delegate
from tests.e2e.test_dynamic import Function

INF, NAN = float("inf"), float("nan")
X = torch.tensor([[1.5, -2.0, NAN, 0.0], [INF, -INF, 3.0, -0.5], [NAN, INF, -1.0, 2.0], [80.0, -200.0, 1e3, -1e3]])
IMAGE = torch.arange(72.0).reshape(1, 2, 6, 6) - 40
IMAGE[0, 0, 1, 1], IMAGE[0, 1, 3, 3], IMAGE[0, 1, 5, 5] = NAN, INF, -INF
WEIGHT = torch.linspace(-1, 1, 54).reshape(3, 2, 3, 3)

CASES = {
    **{
        name: (getattr(torch, name), X)
        for name in ("exp", "log", "log2", "log10", "sigmoid", "tanh", "sqrt", "relu", "abs", "neg", "round", "floor",
                     "rsqrt", "reciprocal", "square")
    },
    **{
        name: (getattr(F, name), X)
        for name in ("relu6", "hardtanh", "leaky_relu", "elu", "silu", "hardswish", "hardsigmoid", "mish",
                     "softplus", "logsigmoid")
    },
    "gelu": (F.gelu, X.nan_to_num(NAN, 1e3, -1e3)),  # eager's of infinity is NaN on CPUs with AVX-512
    **{
        f"{name} along {dim}": (lambda x, name=name, dim=dim: getattr(torch, name)(x, dim), X)
        for name in ("sum", "mean", "amax", "amin", "logsumexp", "softmax", "log_softmax")
        for dim in (0, 1)
    },
    "max": (lambda x: x.max(), X),
    "max of a dimension": (lambda x: x.max(1, keepdim=True).values, X),
    "min of a dimension": (lambda x: x.min(1).values, X),
    "the largest": (lambda x: torch.linalg.vector_norm(x, INF, 1), X),
    "maximum": (lambda x: torch.maximum(x, x.flip(1)), X),
    "maximum that broadcasts": (lambda x: torch.maximum(x[:1], x), X),
    "minimum": (lambda x: torch.minimum(x, x.flip(1)), X),
    "maximum of a constant": (lambda x: torch.maximum(torch.tensor(0.5), x), X),
    "clamp": (lambda x: x.clamp(-1, 2), X),
    "clamp between tensors": (lambda x: x.clamp(x.flip(0), torch.tensor([0.0])), X),
    "kept by a mask": (lambda x: torch.where(torch.eye(4) < 1, x, torch.zeros(())), X.flip(1)),
    "max pool": (lambda x: F.max_pool2d(x, 2), IMAGE),
    "padded max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max pool behind relu": (lambda x: F.max_pool2d(x.relu(), 3, 2, 1), IMAGE),
    "average pool": (lambda x: F.avg_pool2d(x, 2), IMAGE),
    "average pool with gaps": (lambda x: F.avg_pool2d(x, 1, 2), IMAGE),
    "max pool of one element": (lambda x: F.max_pool2d(x, 1, 2), IMAGE),
    "padded average pool": (lambda x: F.avg_pool2d(x, 3, 1, 1), IMAGE),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE),
    "convolution": (lambda x: F.conv2d(x, WEIGHT, padding=1).relu(), IMAGE),
}  # fmt: skip


def lowered(name, nan):
    function, x = CASES[name]
    exported = torch.export.export(Function(function).eval(), (x,))
    options = {} if nan is None else {"options": {"nan": nan}}
    return delegate.to_backend(exported, config={"backends": [{"name": "xnnpack", **options}]}), function(x), x


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name):
    program, expected, x = lowered(name, None)
    assert "xnnpack" in {n.backend for n in program.report.nodes}
    torch.testing.assert_close(program(x), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["amax along 1", "exp", "max pool", "average pool", "maximum"])
def test_the_report_says_it(name):
    numbers = torch.nan_to_num(CASES[name][1], 0.0, 9.0, -9.0)
    for nan, note in (("exact", "nan: exact, kept in"), ("fast", "nan: fast, may become a number")):
        program, _, _ = lowered(name, nan)
        notes = [n for p in program.report.partitions for n in p.notes]
        # An average pool is exact as a convolution is: nothing is added to it.
        assert any(note in n for n in notes) or (nan, name) == ("exact", "average pool")
        torch.testing.assert_close(program(numbers), CASES[name][0](numbers), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [torch.sin, torch.cos])
def test_large_angles(function):
    """XNNPACK gives numbers in the hundreds for them."""
    x = torch.tensor([0.0, -3.0, 1e4, 2.0**19, -(2.0**27), 1e10, 3e38, INF])
    result = delegate.to_backend(torch.export.export(Function(function).eval(), (x,)), "xnnpack")(x)
    torch.testing.assert_close(result[:4], function(x[:4]), rtol=0, atol=2e-6)
    assert result[4:].isnan().all()
