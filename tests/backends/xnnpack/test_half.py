"""float16 and bfloat16: computed in float32, rounded at the border, and at least as accurate as eager."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import delegate
from delegate.testing import assert_same, relative_error
from tests.support.functions import Function
from tests.support.lowering import assert_runs

HALVES = (torch.float16, torch.bfloat16)
torch.manual_seed(0)
X = torch.randn(2, 8, 9, 7)


class Block(nn.Module):
    """A transformer block."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x, mask):
        q, k, v = (p.unflatten(-1, (4, 8)).transpose(1, 2) for p in self.inner(self.norm(x)).chunk(3, -1))
        return x + self.outer(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


CASES = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU6()), (X,)),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.SiLU(), nn.AvgPool2d(2)), (X,)),
    "linear": (lambda: nn.Sequential(nn.Linear(7, 40), nn.GELU(), nn.Linear(40, 3), nn.Softmax(-1)), (X,)),
    "transformer": (Block, (torch.randn(2, 5, 32), torch.rand(2, 1, 5, 5) > 0.3)),
    "group_norm": (lambda: nn.Sequential(nn.GroupNorm(4, 8), nn.Upsample(scale_factor=2)), (X,)),
    "rms_norm": (lambda: nn.RMSNorm(7), (X,)),
    "reductions": (lambda: Function(lambda x: (x.mean((2, 3)), x.sum(1), x.amax(-1), x.var(1), x.logsumexp(1))), (X,)),
    "widened": (lambda: Function(lambda x: (x.float().softmax(-1), x.softmax(-1, dtype=torch.float32), x.exp())), (X,)),
    "there_and_back": (
        lambda: Function(lambda x: (x.float().pow(2).mean(-1, keepdim=True).rsqrt() * x).to(x.dtype)),
        (X,),
    ),
    "mixed": (lambda: Function(lambda x: (x * torch.linspace(0, 1, 7), x @ x.mT.contiguous(), x[..., ::2])), (X,)),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_at_least_as_accurate_as_eager(name, dtype):
    make, inputs = CASES[name]
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    module = make().eval().to(dtype)
    program = delegate.to_backend(torch.export.export(module, inputs), "xnnpack")
    assert [p.backend for p in program.report.partitions] == ["xnnpack"]
    assert not [n.op for n in program.report.nodes if n.backend == "portable" and "_to_copy" not in n.op]
    results, eager = program(*inputs), module(*inputs)
    truth = module.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    step = torch.finfo(dtype).eps
    for ours, theirs, true in zip(*map(_leaves, (results, eager, truth)), strict=True):
        assert ours.dtype is theirs.dtype
        assert relative_error(ours.double(), true.double()) <= relative_error(theirs.double(), true.double()) + step / 8


def _leaves(tree):
    return tree if isinstance(tree, tuple) else (tree,)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_saved_in_16_bits(dtype, tmp_path):
    module = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(dtype)
    x = torch.randn(3, 64, dtype=dtype)
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    assert_runs(program, "xnnpack")
    program.save(tmp_path / "half.dlg")
    assert (tmp_path / "half.dlg").stat().st_size < 1.25 * sum(p.nbytes for p in module.parameters())
    raw = x.numpy() if dtype is torch.float16 else x.view(torch.uint16).numpy()
    ours = program(x)
    with delegate.load(tmp_path / "half.dlg") as loaded:
        loaded_result = loaded(raw) if dtype is torch.float16 else loaded(torch.from_dlpack(x))
        np.testing.assert_array_equal(np.asarray(loaded_result).view(np.uint16), ours.view(torch.uint16).numpy())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_limits(dtype):
    """Check that infinities and NaN pass, and values too large for the type become infinity at the border."""
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, torch.finfo(dtype).max], dtype=dtype)
    module = Function(lambda x: (x + x, x * 0.5))
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    assert_runs(program, "xnnpack")
    results = program(x)
    for ours, theirs in zip(results, module(x), strict=True):
        assert_same(ours, theirs, tolerance=0)


def test_a_number_without_dimensions():
    x, y = torch.tensor(1.5, dtype=torch.bfloat16), torch.randn(40, 50, dtype=torch.bfloat16)
    module = Function(lambda x, y: ((x * y).sigmoid().sum(), x * 2))
    program = delegate.to_backend(torch.export.export(module, (x, y)), "xnnpack")
    assert_runs(program, "xnnpack")
    results = program(x, y)
    for ours, theirs in zip(results, module(x, y), strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_float32_program_keeps_its_roundings(dtype):
    module = Function(lambda x: (x * 3).to(dtype).float().exp())
    x = torch.randn(40, 50)
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    assert_runs(program, "xnnpack", {"aten._to_copy.default": 1})  # the one that rounds
    assert_same(program(x), module(x))


def test_rounded_after_every_operator():
    x = torch.randn(4, 64).half()
    module = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).half()
    config = {"backends": [{"name": "xnnpack", "options": {"half": "every"}}]}
    program = delegate.to_backend(torch.export.export(module, (x,)), config=config)
    assert not program.report.partitions
    assert_same(program(x), module(x))
