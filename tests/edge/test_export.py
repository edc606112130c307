"""to_edge: signatures, mutation, aliasing, control flow, dynamic shapes, refusals."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

from delegate.edge.export import to_edge
from delegate.edge.graphs import CHECKS
from delegate.edge.node import module_path, op_name, source_line
from delegate.edge.passes.pipeline import optimize
from delegate.errors import ExportError
from delegate.testing import assert_same
from tests.edge.helpers import WritingBuffers, assert_as_module, both, edge, ops, run
from tests.support.functions import Function


@dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor


torch.export.register_dataclass(Batch, serialized_type_name="tests.edge.Batch")


class Nested(nn.Module):
    def forward(self, x, batch, pair, *, flag=2, extra=None):
        total = x + batch["ids"] * flag + pair[0].ids - pair[0].mask
        return {"sum": total, "rest": (Batch(total * 2, pair[1]), None, [flag])}


def _nested():
    a = torch.arange(3.0)
    return (a, {"ids": a + 1}, (Batch(a + 2, a + 3), a + 4)), {"flag": 5, "extra": None}


def test_nested_inputs_and_outputs():
    args, kwargs = _nested()
    program, _, _ = both(Nested(), args, kwargs)
    assert [i.name for i in program.inputs] == [
        "x", "batch['ids']", "pair[0].ids", "pair[0].mask", "pair[1]", "flag", "extra"
    ]  # fmt: skip
    flag, extra = program.inputs[-2:]
    assert (flag.is_literal, flag.literal, extra.is_literal, extra.literal) == (True, 5, True, None)
    result, _ = run(program, args, kwargs)
    assert isinstance(result["rest"][0], Batch)


def test_buffers_are_states():
    module = WritingBuffers()
    program = optimize(edge(module, (torch.ones(2),)))
    assert set(program.states.values()) == {"count", "history"} == set(program.mutated)
    assert not any(
        program.is_constant(n) for n in program.graph.find_nodes(op="placeholder") if n.name in program.states
    )
    states = {}
    for step in range(3):
        x = torch.full((2,), float(step))
        got, states = run(program, (x,), states=states)
        assert_same(got, module(x))
        assert_same(states, {"count": module.count, "history": module.history})


def views_of_a_clone(x):
    y = x.clone()
    y[0].fill_(1)
    row = y.view(2, 2, 3)[1]
    y.permute(1, 0)[2].copy_(torch.tensor([5.0, 6.0, 7.0, 8.0]))
    row.mul_(3)
    y.unsqueeze(0).add_(1)
    return y, row


def dropout_is_an_alias(x):
    y = x * 2
    z = nn.functional.dropout(y, 0.5, training=False)
    z.add_(1)
    return y + z


def reshape_is_an_alias_or_a_copy(x):
    y, z = x * 2, x * 3
    y.reshape(-1).add_(1)
    z.t().reshape(-1).add_(1)
    return y, z


def cast_back(x):
    y = torch.zeros(4, 3, dtype=torch.int32)
    y.add_(torch.ones(4, 3, dtype=torch.int32)).masked_fill_(x > 0, 7)
    return y.float().div_(2)


def masked_write(x):
    y = x.clone()
    y[y > 0] = 0
    y[:, [0, 2]] = 4
    return y


def unbound(x):
    first, second, *_ = (x * 1).split(1)
    first.add_(1)
    return first + second


def no_grad_region(x):
    with torch.no_grad():
        y = x * 2
        z = y.add_(1)
    return z + y


def disabled_autocast_region(x):
    with torch.autocast("cpu", enabled=False):
        y = x.float() * 2
    return y + 1


def enabled_autocast_region(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


@pytest.mark.parametrize(
    "function",
    [
        views_of_a_clone, dropout_is_an_alias, reshape_is_an_alias_or_a_copy, cast_back, masked_write, unbound,
        no_grad_region, disabled_autocast_region, enabled_autocast_region,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_in_place_and_regions(function):
    both(Function(function), (torch.randn(4, 3, generator=torch.manual_seed(0)),))


class Training(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(x)


@pytest.mark.filterwarnings("ignore:method .* training mode")
def test_batch_norm_in_training_mode_is_functional():
    x = torch.randn(8, 3, generator=torch.manual_seed(0))
    program = optimize(to_edge(torch.export.export(Training().train(), (x,))))
    module = Training().train()
    got, states = run(program, (x,))
    assert_same(got, module(x))
    assert set(states) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert_same(states["norm.running_var"], module.norm.running_var)


class Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda v: v.transpose(0, 1) + 1, lambda v: v.t() * 2, (x,))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond(sign):
    program = optimize(edge(Branches(), (torch.ones(2, 3),)))
    assert ops(program)["cond"] == 1
    assert_as_module(Branches(), program, (torch.full((2, 3), sign),))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        q, k, v = self.proj(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape)


@pytest.mark.parametrize("preserve_ops", [frozenset(), frozenset({"aten.linear.default"})], ids=["core", "whole"])
def test_dynamic_shapes(preserve_ops):
    torch.manual_seed(0)
    module, dims = Attention(), {0: Dim("batch", max=16), 1: Dim("length", min=2, max=64)}
    program = optimize(edge(module, (torch.randn(2, 5, 8),), preserve_ops=preserve_ops, dynamic_shapes=(dims,)))
    assert len(program.range_constraints) == 2
    assert ("linear" in ops(program)) == bool(preserve_ops)
    for batch, length in [(2, 5), (1, 2), (7, 33)]:
        assert_as_module(module, program, (torch.randn(batch, length, 8),))


class Checks(nn.Module):
    def forward(self, x, n: int):
        torch._check(x.shape[0] > 1)
        return x.to(torch.float32) * n


def test_checks_are_removed():
    program = edge(Checks(), (torch.ones(3), 4), dynamic_shapes=({0: Dim("n", min=2)}, None))
    assert not {op_name(n) for n in program.graph.nodes} & CHECKS


def test_nodes_know_their_module_and_line():
    program = optimize(edge(Attention(), (torch.randn(2, 5, 8),)))
    (addmm,) = [n for n in program.graph.nodes if op_name(n) == "aten.addmm.default"]
    assert module_path(addmm) == "proj"
    assert "test_export.py" in source_line(addmm)


def test_the_exported_program_is_not_changed():
    ep = torch.export.export(WritingBuffers(), (torch.ones(2),))
    before = str(ep)
    optimize(to_edge(ep))
    assert str(ep) == before


def writes_input(x):
    x.add_(1)
    return x * 2


def test_the_new_value_of_a_written_input_is_the_last_result():
    program = edge(Function(writes_input), (torch.ones(3),))
    assert program.written == (program.inputs[0].node,)
    assert [op_name(n) for n in program.graph.output_node().args[0]] == ["aten.mul.Tensor", "aten.add.Tensor"]


class SharedMemory(nn.Module):
    def __init__(self):
        super().__init__()
        memory = torch.zeros(4)
        self.register_buffer("whole", memory)
        self.register_buffer("part", memory[:2])

    def forward(self, x):
        self.whole.add_(1)
        return x + self.part.sum()


def test_written_buffers_that_share_memory_are_refused():
    with pytest.raises(ExportError, match="whole is written to, but shares its memory"):
        edge(SharedMemory(), (torch.ones(3),))


def spectrum(x):
    return torch.stft(x.repeat(1, 3), 6, hop_length=3, window=torch.hann_window(6), return_complex=True).abs()


def chosen(x):
    return x.nonzero(), x[x > 0], x.topk(2, 0), x.sort(1), torch.einsum("ij,kj->ik", x, x)


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights:UserWarning")
@pytest.mark.parametrize(
    "module",
    [
        nn.LSTM(3, 5, num_layers=2, bidirectional=True),
        nn.GRU(3, 5),
        nn.TransformerEncoderLayer(3, 1, 8),
        Function(spectrum),
        Function(chosen),
    ],
    ids=["lstm", "gru", "transformer", "stft", "data dependent"],
)
def test_compound_modules(module):
    both(module.eval(), (torch.randn(4, 3, generator=torch.manual_seed(0)),))


def _fake():
    with FakeTensorMode():
        return torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))


def _meta():
    return torch.export.export(nn.Linear(2, 2, device="meta"), (torch.ones(1, 2, device="meta"),))


@pytest.mark.parametrize(("make", "kind"), [(_fake, "a fake tensor"), (_meta, "on the meta device")])
def test_weights_without_data_are_refused(make, kind):
    with pytest.raises(ExportError, match=f"weight is {kind} and has no data: load the weights before the export"):
        to_edge(make())
