"""Unusual models on XNNPACK and portable kernels give what eager gives, call after call."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import Dim

import delegate
from delegate.program.file import serialize
from tests.support.lowering import assert_same, compiled, relative_error


class Function(nn.Module):
    """A function of the module, which holds layers and tensors, and of the inputs."""

    def __init__(self, function: Any, **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def seeded(*layers: nn.Module) -> nn.Sequential:
    """The layers in a row with seeded parameters and statistics, none of them trivial."""
    model = nn.Sequential(*layers)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                value = torch.randn(tensor.shape, generator=generator) / max(tensor[:1].numel(), 1) ** 0.5
                tensor.copy_(value.abs() + 0.5 if "running_var" in name else value)
    return model.eval()


def with_results(function: Any) -> Any:
    """A function of a hidden value: relu of the input times itself."""
    return lambda _, a: function(torch.relu(a @ a))


LINEAR = nn.Linear(6, 6)
STATIC = {
    "all constant": (Function(lambda m, a: torch.relu(m.w) * 2, w=x(3, 4)), (x(2),)),
    "constants as outputs": (Function(lambda m, a: (m.w, m.w.t(), m.w), w=x(3, 4)), (x(2),)),
    "parameter as output": (Function(lambda m, a: (m.w, a + m.w), w=nn.Parameter(x(3, 4))), (x(3, 4),)),
    "no inputs": (Function(lambda m: torch.relu(m.w), w=x(3, 4)), ()),
    "empty graph": (nn.Identity(), (x(2, 3),)),
    "batch norm alone": (seeded(nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3)), (x(2, 3, 5, 5),)),
    "batch norm after linear": (seeded(nn.BatchNorm1d(6), nn.Linear(6, 3), nn.BatchNorm1d(3)), (x(4, 6),)),
    "convolution read twice": (
        Function(lambda m, a: m.norm(m.conv(a)) + m.conv(a), conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4)),
        (x(1, 3, 8, 8),),
    ),
    "one layer three times": (nn.Sequential(LINEAR, nn.ReLU(), LINEAR, nn.Tanh(), LINEAR), (x(2, 6),)),
    "tied embedding": (
        Function(lambda m, i: m.table(i) @ m.table.weight.t(), table=nn.Embedding(10, 6)),
        (torch.tensor([[1, 2, 9]]),),
    ),
    "image of bytes": (
        Function(lambda m, a: m.conv(a.float() / 255), conv=nn.Conv2d(3, 4, 3)),
        (torch.arange(192, dtype=torch.uint8).view(1, 3, 8, 8),),
    ),
    "portable nodes between": (
        Function(lambda _, a, i: (torch.relu(a).gather(1, i) * 2 + a.topk(2)[0]).softmax(-1)),
        (x(3, 5), torch.tensor([[0, 1], [4, 4], [2, 0]])),
    ),
    "factorisations": (
        Function(lambda m, a: (torch.linalg.solve(a + m.one, a), torch.linalg.inv(a + m.one)), one=9 * torch.eye(4)),
        (x(4, 4),),
    ),
    "results given, shapes changed": (
        Function(lambda _, a: torch.atan2(a, a + 1, out=torch.empty_like(a)) * torch.relu(a).clone().resize_(3, 1)),
        (x(3, 5),),
    ),
    "statistics of the batch": (
        Function(lambda m, a: m.norm(torch.relu(a)), norm=nn.BatchNorm2d(3, track_running_stats=False)),
        (x(2, 3, 5, 5),),
    ),
}
# Model -> the operators that XNNPACK refuses, with the number of their nodes; it runs all others.
REFUSED = {
    "tied embedding": {"aten.embedding.default": 1},
    "image of bytes": {"aten._to_copy.default": 1},
    "portable nodes between": {"aten.gather.default": 1, "aten.topk.default": 1},
    "factorisations": {"aten._linalg_solve_ex.default": 1, "aten.linalg_inv_ex.default": 1},
    "results given, shapes changed": {"aten.atan2.default": 1, "aten.as_strided.default": 1},
    "statistics of the batch": {"aten._native_batch_norm_legit.no_stats": 1},
}  # fmt: skip
UNTOUCHED = ("all constant", "constants as outputs", "no inputs", "empty graph")


def run(module: nn.Module, args: tuple[torch.Tensor, ...]) -> Any:
    with torch.no_grad():
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, module(*args))


@pytest.mark.parametrize("name", STATIC)
def test_same_as_eager(name):
    module, args = STATIC[name]
    expected = run(module.eval(), args)
    program = compiled(module, args, backends="xnnpack", portable=REFUSED.get(name))
    for _ in range(2):
        assert_same(program(*args), expected)
    loaded = delegate.load(serialize(program.program))
    leaves = pytree.tree_leaves(loaded(*(a.numpy() for a in args)))
    for got, wanted in zip(leaves, pytree.tree_leaves(expected), strict=True):
        assert relative_error(got, wanted) <= 1e-5
    assert bool(program.report.partitions) is (name not in UNTOUCHED)


@pytest.mark.filterwarnings("ignore:method .* training mode")
def test_dropout_in_training_mode():
    given = x(100, 100)
    program = delegate.to_backend(delegate.export(nn.Dropout(0.25).train(), (given,)), [])
    first, second = program(given), program(given)
    kept = first != 0
    assert_same(first[kept], given[kept] / 0.75)
    assert 0.72 < kept.float().mean() < 0.78
    assert not torch.equal(first, second)


class Decay(nn.Module):
    """Mutates two buffers, one of them an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("trace", torch.zeros(2, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, a: torch.Tensor) -> Any:
        out = self.layer(a) + self.trace
        self.trace.mul_(0.5).add_(out.relu())
        self.calls += 1
        return out, self.trace * 1, self.calls * 1


class Cache(nn.Module):
    """Writes keys at a position, and attends to all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(8, 4))

    def forward(self, a: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(0, position, self.layer(a))
        return torch.softmax(a @ self.keys.t(), -1) @ self.keys


@pytest.mark.parametrize(
    ("module", "calls", "portable"),
    [
        (Decay(), [(x(2, 4) + i,) for i in range(4)], "aten.add.Tensor"),
        (Cache(), [(x(1, 4) + i, torch.tensor([i])) for i in range(4)], "aten.index_put.default"),
    ],
    ids=["decay", "cache"],
)
def test_states_between_partitions(module, calls, portable):
    reference = copy.deepcopy(module)
    program = compiled(module, calls[0], backends="xnnpack", portable={portable: 1})
    assert program.report.partitions
    for args in calls:
        assert_same(program(*args), run(reference, args))


BATCH, LENGTH = Dim("batch", min=1, max=16), Dim("length", min=4, max=64)
CONVNET = seeded(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.Softmax(-1),
)  # fmt: skip
ENCODER = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
DYNAMIC = {
    "convnet, batch": (CONVNET, ({0: BATCH},), [x(n, 3, 16, 16) for n in (4, 1, 16, 7, 1, 4)]),
    "resized images written in place, batch": (
        Function(lambda _, a: nn.functional.interpolate(torch.relu(a).add_(1), scale_factor=2.0, mode="bilinear")),
        (({0: BATCH},),),
        [x(n, 3, 8, 8) for n in (4, 1, 16)],
    ),
    "convolution, length": (
        seeded(nn.Conv1d(4, 8, 3, padding=1), nn.GELU(), nn.Conv1d(8, 4, 2)),
        ({2: LENGTH},),
        [x(2, 4, n) for n in (20, 33, 4, 64, 20)],
    ),
    "encoder, length": (ENCODER, ({1: LENGTH},), [x(4, n, 32) for n in (10, 4, 17, 64, 10)]),
    "operators of sizes alone": (
        Function(
            lambda m, a: (
                m.layer(a)
                + torch.arange(a.shape[0])[:, None] * torch.ones(a.shape[0], 1)
                + torch.zeros(a.shape[0], 4)
                + torch.full((a.shape[0], 1), 2.0)
            ),
            layer=nn.Linear(4, 4),
        ),
        (({0: BATCH},),),
        [x(n, 4) for n in (2, 16, 1, 5)],
    ),
    "encoder, batch and length": (
        ENCODER,
        ({0: BATCH, 1: LENGTH},),
        [x(b, n, 32) for b, n in ((4, 10), (1, 10), (3, 17), (16, 64), (1, 4), (4, 10))],
    ),
}

# The operators of these that XNNPACK refuses.
OF_SIZES = {"aten.arange.start_step": 1, "aten.unsqueeze.default": 1, "aten.full.default": 3, "aten.mul.Tensor": 1}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_sizes(name):
    module, sizes, calls = DYNAMIC[name]
    portable = OF_SIZES if name == "operators of sizes alone" else None
    program = compiled(module, (calls[0],), backends="xnnpack", dynamic_shapes=sizes, portable=portable)
    assert program.report.partitions
    for given in [*calls, *reversed(calls)]:
        assert_same(program(given), run(module.eval(), (given,)))


class Chain(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        for i in range(self.length):
            a = torch.tanh(a) if i % 2 else a + 0.25
        return a


@pytest.mark.slow
def test_lowering_time_grows_linearly():
    seconds = {}
    for length in (300, 3000):
        exported = torch.export.export(Chain(length), (x(2, 3),))
        start = time.process_time()
        program = delegate.to_backend(exported, "xnnpack")
        seconds[length] = time.process_time() - start
        assert_same(program(x(2, 3)), Chain(length)(x(2, 3)), 1e-4)
        assert len(program.report.partitions) == 1
    assert seconds[3000] < 10 * 2.5 * seconds[300]  # a quadratic step would make it 100


def test_noncontiguous_and_numpy_inputs_agree():
    program = compiled(CONVNET, (x(2, 3, 16, 16),), backends="xnnpack")
    given = x(2, 3, 16, 16).permute(0, 1, 3, 2)
    expected = run(CONVNET, (given,))
    assert_same(program(given), expected)
    assert_same(program.loaded(given.numpy()), expected)
