"""The emitter: what a lowered graph becomes, in the program's text and tables."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import delegate
from delegate.errors import LoweringError
from delegate.program.expr import Expr, Op
from delegate.program.file import serialize
from delegate.program.model import DelegateCall, KernelCall, StorageKind
from tests.support.functions import Function
from tests.support.lowering import compiled


def method(function, args, **options):
    return compiled(Function(function), args, **options).program.methods[0]


def homes(made):
    return {v.name: v.storage.kind for v in made.values}


def operators(program):
    return sorted(program.program.operators)


def test_portable_programs_keep_what_kernels_run_faster_whole():
    def forward(x):
        x = F.silu(F.max_pool2d(x, 2))
        return F.scaled_dot_product_attention(x, x, x)

    made = compiled(Function(forward), (torch.ones(1, 2, 8, 8),))
    assert operators(made) == [
        "aten.max_pool2d.default",
        "aten.scaled_dot_product_attention.default",
        "aten.silu.default",
    ]


def test_tied_weights_are_stored_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 8)

        def forward(self, tokens):
            return F.linear(self.embedding(tokens), self.embedding.weight)

    made = compiled(Tied(), (torch.tensor([[1, 2, 3]]),))
    assert [c.shape for c in made.program.constants] == [(50, 8)]


def test_views_of_inputs_take_no_memory():
    made = method(lambda a: a.permute(1, 0)[1:].unsqueeze(0) + 1, (torch.ones(3, 4),))
    assert made.arenas == (0,)
    assert list(homes(made).values()) == [
        StorageKind.INPUT,
        StorageKind.ALIAS,
        StorageKind.ALIAS,
        StorageKind.ALIAS,
        StorageKind.OUTPUT,
    ]


def test_intermediate_values_share_the_arena():
    def chain(a):
        for _ in range(10):
            a = (a * 2).exp()
        return a

    made = method(chain, (torch.ones(1024),))
    assert made.arenas == (2 * 4096,)
    assert list(homes(made).values()).count(StorageKind.ARENA) == 19


def test_result_and_its_view_are_one_output():
    made = method(lambda a: (lambda_result := a * 2, lambda_result.view(-1)), (torch.ones(2, 3),))
    assert [h for h in homes(made).values() if h is not StorageKind.INPUT] == [StorageKind.OUTPUT, StorageKind.ALIAS]


def test_arguments_follow_the_schema_with_defaults():
    program = compiled(Function(lambda a: torch.add(a, a, alpha=2).sum(0)), (torch.ones(2, 3),)).program
    calls = {program.operators[c.operator]: c.args for c in program.methods[0].instructions}
    assert calls["aten.add.Tensor"][2] == 2
    assert calls["aten.sum.dim_IntList"][1:] == ((0,), False, None)


def test_size_of_an_input_becomes_an_expression():
    made = method(
        lambda a: (a.reshape(-1), a.shape[0] * 2 + 1), (torch.ones(4, 3),), dynamic_shapes=(({0: Dim("rows", max=9)},),)
    )
    (symbol,) = made.symbols
    assert (symbol.input, symbol.dim, symbol.maximum) == (0, 0, 9)
    assert made.arenas == (0,)  # planned at the bounds: the one result is the caller's
    assert made.outputs[1].evaluate({0: 5}) == 11
    flat = made.values[made.outputs[0].index].shape[0]
    assert flat.evaluate({0: 5}) == 15


def test_size_that_only_occurs_in_a_product_is_solved_for():
    half = Dim("half", min=1, max=8)
    made = method(lambda a: a.reshape(-1, 2).sum(1), (torch.ones(8),), dynamic_shapes=(({0: 2 * half},),))
    (symbol,) = made.symbols
    assert (symbol.input, symbol.dim, symbol.maximum) == (0, 0, 16)
    rows = made.values[made.outputs[0].index].shape[0]
    assert rows == Expr(Op.FLOORDIV, 0, (Expr(Op.SYMBOL), Expr(Op.CONST, 2)))


def test_sizes_known_from_data_are_symbols():
    made = method(lambda a: a.nonzero() * 2, (torch.ones(4),))
    (symbol,) = made.symbols
    assert (symbol.input, made.values[symbol.value].name, symbol.dim) == (-1, "nonzero", 0)
    assert (symbol.minimum, symbol.maximum) == (0, 4)
    assert made.arenas == (-1,)


def test_size_known_from_data_is_refused_inside_control_flow():
    def branch(a):
        return a.nonzero().sum()

    with pytest.raises(LoweringError, match=r"number u\d+ depends on data .*outside of control flow"):
        compiled(Function(lambda a: torch.cond(a.sum() > 0, branch, torch.sum, (a.long(),))), (torch.ones(4),))


def test_states_are_updated_last():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(4))

        def forward(self, a):
            old = self.cache * 1
            self.cache.copy_(a)
            return old + self.cache

    program = compiled(Cache(), (torch.ones(4),)).program
    last = program.methods[0].instructions[-1]
    assert program.operators[last.operator] == "aten.copy.default"
    assert program.methods[0].values[last.outputs[0]].storage.kind is StorageKind.STATE
    assert [s.name for s in program.states] == ["cache"]


def test_partition_becomes_one_call():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 8)
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, ids):
            return self.net(self.embed(ids))

    embedding = {"aten.embedding.default": 1}
    program = compiled(Net(), (torch.tensor([[1, 2, 3]]),), backends=["xnnpack"], portable=embedding).program
    assert [type(i) for i in program.methods[0].instructions] == [KernelCall, DelegateCall]
    assert [c.name for c in program.constants] == ["embed.weight"]
    assert program.delegates[0].backend == "xnnpack"


def test_same_model_gives_the_same_bytes():
    def once():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
        return serialize(compiled(module, (torch.ones(1, 3, 8, 8),), backends=["xnnpack"]).program)

    first = once()
    assert first == once()
    assert delegate.load(first)(torch.ones(1, 3, 8, 8).numpy()).shape == (1, 2)
