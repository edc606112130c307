"""Factors that move into weights before a region is lowered: results match eager, the operators disappear."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import delegate
from delegate.backends.xnnpack.aot.rewrite import rewrite
from tests.backends.xnnpack.harness import assert_as_eager, export, lower, region_of, run
from tests.support.lowering import assert_runs, assert_same

RTOL, ATOL = 1e-4, 1e-5


class Model(nn.Module):
    """Layers with random parameters, and a function of them and the input."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            setattr(self, name, layer)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn_like(parameter))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def vector(*shape):
    return nn.Parameter(torch.ones(*shape))


def heads(x):
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def rms(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def repeat(x):
    n, count, length, channels = x.shape
    return x[:, :, None].expand(n, count, 2, length, channels).reshape(n, count * 2, length, channels)


# name -> (model, input shapes, counts of operators after the rewrite)
MOVED = {
    "norm into two linears": (
        lambda: Model(
            lambda m, x: _both(m, m.norm(x)),
            norm=nn.LayerNorm(8),
            a=nn.Linear(8, 6),
            b=nn.Linear(8, 6, bias=False),
        ),
        [(2, 5, 8)],
        {"MUL": 1, "ADD": 2},
    ),
    "scale into a linear": (
        lambda: Model(lambda m, x: m.a(m.s * x), s=vector(8), a=nn.Linear(8, 6)),
        [(2, 5, 8)],
        {"MUL": 0},
    ),
    "rms norm": (
        lambda: Model(lambda m, x: m.a(m.s * rms(x)), s=vector(8), a=nn.Linear(8, 6, bias=False)),
        [(2, 5, 8)],
        {"MUL": 1, "RSQRT": 1, "DIV": 0, "SQRT": 0},
    ),
    "scale and shift after a linear, through a permute": (
        lambda: Model(
            lambda m, x: x.movedim(-1, 1) + (m.s * m.a(x).movedim(-1, 1) + m.t),
            s=vector(8, 1, 1),
            t=vector(8, 1, 1),
            a=nn.Linear(8, 8, bias=False),
        ),
        [(2, 3, 4, 8)],
        {"MUL": 0, "ADD": 1},
    ),
    "scale and shift after a convolution": (
        lambda: Model(
            lambda m, x: (m.a(x) * m.s + m.t).relu(), s=vector(6, 1, 1), t=vector(1, 6, 1, 1), a=nn.Conv2d(8, 6, 3)
        ),
        [(2, 8, 5, 6)],
        {"MUL": 0, "ADD": 0},
    ),
    "a number, through heads": (
        lambda: Model(lambda m, x: (heads(m.a(x)) * 0.3).abs(), a=nn.Linear(8, 8)),
        [(2, 5, 8)],
        {"MUL": 0},
    ),
    "scale of attention": (
        lambda: Model(
            lambda m, x: F.scaled_dot_product_attention(heads(m.q(x)), heads(m.k(x)), heads(x)),
            q=nn.Linear(8, 8),
            k=nn.Linear(8, 8),
        ),
        [(2, 5, 8)],
        {"MUL": 0},
    ),
}


def _both(m, x):
    return m.a(x) + m.b(x)


@pytest.mark.parametrize("name", MOVED)
def test_moved(name, operators):
    torch.manual_seed(0)
    make, shapes, counts = MOVED[name]
    run(make(), tuple(torch.randn(s) for s in shapes), RTOL, ATOL)
    assert {op: operators[op] for op in counts} == counts


# name -> (model, input shapes): each has a reason why its factor must stay where it is
STAYS = {
    "the norm is used otherwise, too": (
        lambda: Model(lambda m, x: m.a(m.norm(x)) + m.norm(x), norm=nn.LayerNorm(8), a=nn.Linear(8, 8)),
        [(2, 5, 8)],
    ),
    "the product leaves the region": (
        lambda: Model(lambda m, x: _pair(m.s * x, m.a), s=vector(8), a=nn.Linear(8, 8)),
        [(2, 5, 8)],
    ),
    "the weight is shared": (
        lambda: Model(lambda m, x: m.a(m.s * x) + m.a(x), s=vector(8), a=nn.Linear(8, 8)),
        [(2, 5, 8)],
    ),
    "the layer is used otherwise, too": (
        lambda: Model(lambda m, x: _scaled_and_plain(m.a(x), m.s), s=vector(8), a=nn.Linear(8, 8)),
        [(2, 5, 8)],
    ),
    "along another dimension": (
        lambda: Model(lambda m, x: m.a(x) * m.s, s=vector(5, 1), a=nn.Linear(8, 8)),
        [(2, 5, 8)],
    ),
    "it makes the result larger": (
        lambda: Model(lambda m, x: m.a(x) * m.s, s=vector(8), a=nn.Linear(8, 1)),
        [(2, 5, 8)],
    ),
    "queries are the keys": (
        lambda: Model(lambda m, x: _own_attention(heads(m.a(x))), a=nn.Linear(8, 8)),
        [(2, 5, 8)],
    ),
    "the weights would be infinite": (
        lambda: _times(1e2, Model(lambda m, x: (m.a(x * 1e-30) * 1e38).abs(), a=nn.Linear(8, 8, bias=False))),
        [(2, 5, 8)],
    ),
    "the weights would be too small": (
        lambda: _times(1e-2, Model(lambda m, x: (m.a(x * 1e30) * 1.2e-38).abs(), a=nn.Linear(8, 8, bias=False))),
        [(2, 5, 8)],
    ),
    "the weights would be infinite, before a layer": (
        lambda: _times(1e2, Model(lambda m, x: m.a(x * 1e-30 * torch.full((8,), 1e38)), a=nn.Linear(8, 8))),
        [(2, 5, 8)],
    ),
    "the zeros have signs": (
        lambda: Model(lambda m, x: 1 / (m.a(x) * -0.0), a=nn.Linear(8, 8)),
        [(2, 5, 8)],
    ),
    "rms without eps": (
        lambda: Model(lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))),
        [(2, 5, 8)],
    ),
}


def _times(factor, model):
    """Return a model with its parameters multiplied by a factor."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


def _pair(x, layer):
    return x, layer(x)


def _scaled_and_plain(y, scale):
    return y * scale + y.relu()


def _own_attention(x):
    return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("name", STAYS)
def test_stays(name, operators):
    torch.manual_seed(0)
    make, shapes = STAYS[name]
    run(make(), tuple(torch.randn(s) for s in shapes), RTOL, ATOL)
    assert operators["MUL"] >= 1


def test_repeated_heads(operators):
    """Check the pattern after edge, which converts all reshapes to one view operator."""
    torch.manual_seed(0)
    module = Model(lambda m, q, k, v: F.scaled_dot_product_attention(q, repeat(k), repeat(v), scale=1.0))
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    compiled = delegate.to_backend(torch.export.export(module, (q, k, v)), "xnnpack")
    assert_runs(compiled, "xnnpack")
    result = torch.from_numpy(np.asarray(compiled.loaded(q.numpy(), k.numpy(), v.numpy())))
    assert_same(result, module(q, k, v))
    assert operators["MUL"] == 0
    assert operators["BATCH_MATMUL"] == 2


def test_names_and_outputs_stay():
    region = region_of(export(MOVED["norm into two linears"][0](), (torch.randn(2, 5, 8),)))
    names = {n.name for n in region.graph.nodes if n.op == "call_function"}
    before = str(region.graph)
    rewritten = rewrite(region)
    assert {n.name for n in rewritten.graph.nodes if n.op == "call_function"} == names
    assert [n.name for n in rewritten.outputs] == [n.name for n in region.outputs]
    assert str(region.graph) == before, "the backend's input must not change"


def test_any_batch():
    torch.manual_seed(0)
    make, shapes, _ = MOVED["scale of attention"]
    module = make()
    lowered = lower(module, (torch.randn(shapes[0]),), {"inputs": ({0: torch.export.Dim("n", min=1, max=8)},)})
    for n in (2, 1, 5):
        assert_as_eager(module, (torch.randn(n, *shapes[0][1:]),), lowered, RTOL, ATOL)


@pytest.fixture
def operators(monkeypatch):
    """Count the TFLite operators of all lowered models in a test."""
    from delegate.backends.xnnpack.aot.tflite import Model as Written

    counts: Counter[str] = Counter()
    original = Written.operator

    def record(self, name, *rest):
        counts[name] += 1
        original(self, name, *rest)

    monkeypatch.setattr(Written, "operator", record)
    return counts
