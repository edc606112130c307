"""Realistic modules, called several times with other sizes: results, gradients and writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from delegate.testing import assert_same
from tests.support.sampling import every

from .compiling import Lowered, compile_on

F = nn.functional
T = torch.Tensor


class Of(nn.Module):
    """A module with layers, and a function of the layers and the input."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleDict(layers)

    def forward(self, *args: Any) -> Any:
        return self.function(self.layers, *args)


class Counting(nn.Module):
    """A module that writes to a buffer and to a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.rows = nn.Linear(8, 8), list[int]()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: T) -> T:
        self.calls += 1
        self.rows.append(x.shape[0])
        return self.linear(x) * self.calls


class Tied(nn.Module):
    """A module whose last layer shares the weights of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: T) -> T:
        return self.out(self.table(ids).cumsum(1))


def attend_in_groups(net: nn.ModuleDict, x: T) -> T:
    q, k, v = (x.unflatten(-1, (-1, 4)).transpose(1, 2) for x in net["qkv"](x).split((16, 8, 8), -1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True).flatten(2)


def attend_with_mask(net: nn.ModuleDict, x: T) -> T:
    q, k, v = (x.unflatten(-1, (2, 4)).transpose(1, 2) for x in net["qkv"](x).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v, torch.eye(x.shape[1], dtype=torch.bool)).flatten(2)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def r(*shape: int) -> T:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def ids(*shape: int) -> T:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % 20


CASES: dict[str, tuple[Callable[[], nn.Module], list[Any]]] = {
    "a buffer and a list": (Counting, [r(4, 8), r(5, 8), r(6, 8), r(1, 8)]),
    "lstm": (lambda: Of(lambda net, x: net["lstm"](x)[0][:, -1], lstm=nn.LSTM(8, 8)), [r(2, 5, 8), r(3, 7, 8)]),
    "encoder": (encoder, [r(2, 5, 8), r(3, 6, 8), r(1, 1, 8)]),
    "grouped attention": (lambda: Of(attend_in_groups, qkv=nn.Linear(8, 32)), [r(2, 5, 8), r(3, 6, 8)]),
    "masked attention": (lambda: Of(attend_with_mask, qkv=nn.Linear(8, 24)), [r(2, 5, 8), r(3, 6, 8)]),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        [r(2, 3, 8, 8), r(3, 3, 9, 9), r(2, 3, 8, 8).to(memory_format=torch.channels_last)],
    ),
    "sizes of data": (lambda: Of(lambda net, x: (x[x > 0].sum(), torch.nonzero(x > 0.5))), [r(20), r(33), -r(5).abs()]),
    "tied weights": (Tied, [ids(2, 5), ids(4, 9), torch.zeros(1, 0, dtype=torch.int64)]),
    "dtypes": (lambda: Of(lambda net, x: net["a"](x.double()).half().float(), a=nn.Linear(8, 8).double()), [r(3, 8)]),
    "nothing": (lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU()), [r(0, 8), r(2, 8), r(8)]),
}

# Case -> how many nodes XNNPACK runs, and how many it refuses for each reason: without gradients, and with them.
ON_XNNPACK: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "a buffer and a list": ({"runs": 15}, {"runs": 45}),
    "lstm": ({}, {}),  # dynamo captures no graph of it
    "encoder": (
        {"operator": 3},
        {
            "runs": 366, "operator": 27, "non_constant": 3, "inaccurate": 3, "dynamic_shape": 8,
            "refused": 1, "too_small": 1,
        },
    ),
    "grouped attention": (
        {"runs": 18, "dynamic_shape": 2},
        {
            "runs": 78, "operator": 12, "non_constant": 3, "border": 1, "too_small": 1, "dynamic_shape": 6,
            "inaccurate": 1, "refused": 1,
        },
    ),
    "masked attention": (
        {"runs": 19, "dynamic_shape": 2, "dtype": 1, "operator": 1},
        {
            "runs": 65, "operator": 13, "non_constant": 3, "border": 1, "too_small": 1, "dynamic_shape": 4,
            "dtype": 1, "refused": 3,
        },
    ),
    "batch norm": (
        {"runs": 12},
        {"non_constant": 3, "dtype": 3, "operator": 12, "runs": 119, "dynamic_shape": 9, "too_small": 1},
    ),
    "sizes of data": ({"operator": 6, "runs": 2}, {"operator": 6, "runs": 2}),
    "tied weights": (
        {"operator": 7, "runs": 2},
        {"operator": 25, "runs": 23, "dtype": 4, "inaccurate": 2, "dynamic_shape": 4, "too_small": 1},
    ),
    "dtypes": ({"dtype": 3, "runs": 1}, {"dtype": 9, "runs": 1, "inaccurate": 1}),
    "nothing": ({"operator": 2, "runs": 4}, {"too_small": 1, "operator": 4, "runs": 17, "inaccurate": 2}),
}  # fmt: skip


def tensors(tree: Any) -> list[T]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, T)]


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch looks at it itself
@pytest.mark.parametrize(("name", "trains"), every(7, CASES, [False, True]))
def test_as_in_eager(name: str, trains: bool, lowered: Lowered) -> None:
    torch.manual_seed(0)
    make, inputs = CASES[name]
    eager = make().train(trains)
    other = copy.deepcopy(eager)
    ours = compile_on(other)
    for args_pair in [*inputs, inputs[0]]:
        args = copy.deepcopy(args_pair), copy.deepcopy(args_pair)
        with torch.set_grad_enabled(trains):
            expected, actual = eager(args[0]), ours(args[1])
        assert_same(actual, expected)
        assert_same(args[1], args[0])
        assert [t.stride() for t in tensors(actual) if t.numel() > 1] == [
            t.stride() for t in tensors(expected) if t.numel() > 1
        ]
        if trains:
            for side in (expected, actual):
                losses = [(t**2).mean() for t in tensors(side) if t.requires_grad and t.numel()]
                if losses:
                    sum(losses).backward()
    for (key, a), (_, b) in zip(eager.named_parameters(), other.named_parameters(), strict=True):
        assert_same({key: b.grad}, {key: a.grad}, 2e-6, at_least=1.0)  # gradients may be sums that cancel
    assert_same(dict(other.named_buffers()), dict(eager.named_buffers()))
    assert lowered.answers == ON_XNNPACK[name][trains]
