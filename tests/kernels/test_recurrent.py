"""Kernels of LSTM, GRU and RNN layers, and programs that preserve these layers."""

from __future__ import annotations

import pytest
import torch

import delegate
from delegate.kernels.portable import TABLE
from delegate.program.dtypes import DType
from delegate.testing import assert_same
from tests.support.kernels import check, sample, to_runtime
from tests.support.sampling import every

RNN = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN, "rnn_relu": torch.nn.RNN}


def layers(op: str, dtype: torch.dtype = torch.float32, **options: object) -> torch.nn.RNNBase:
    torch.manual_seed(0)
    plain = {"nonlinearity": op.removeprefix("rnn_")} if op.startswith("rnn") else {}
    return RNN[op](5, 6, **plain, **options).to(dtype).eval()


def states(module: torch.nn.RNNBase, op: str, batch: int, dtype: torch.dtype) -> torch.Tensor | list[torch.Tensor]:
    count = module.num_layers * (1 + module.bidirectional)
    first = sample(count, batch, module.proj_size or 6, dtype=dtype, scale=1.0)
    return [first, sample(count, batch, 6, dtype=dtype, scale=1.0, seed=1)] if op == "lstm" else first


OPTIONS = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "bidirectional": {"bidirectional": True},
    "all": {"num_layers": 3, "bidirectional": True},
    "no bias": {"bias": False, "num_layers": 2},
}


@pytest.mark.parametrize("op", RNN)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("shape", [(7, 2), (1, 1), (4, 9), (3, 0)], ids=str)
def test_padded(op, options, shape):
    module = layers(op, **options)
    steps, batch = shape
    for batch_first in (False, True):
        x = sample(*((batch, steps) if batch_first else (steps, batch)), 5, scale=1.0)
        hx = states(module, op, batch, torch.float32)
        rest = (module.bias, module.num_layers, 0.0, False, module.bidirectional, batch_first)
        check(getattr(torch.ops.aten, op).input, x, hx, [p.detach() for p in module.parameters()], *rest)


@pytest.mark.parametrize("op", RNN)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("sizes", [[3, 3, 2, 1], [4], [1, 1, 1]], ids=str)
def test_packed(op, options, sizes):
    module = layers(op, **options)
    hx = states(module, op, sizes[0], torch.float32)
    rest = (module.bias, module.num_layers, 0.0, False, module.bidirectional)
    parameters = [p.detach() for p in module.parameters()]
    x = sample(sum(sizes), 5, scale=1.0)
    check(getattr(torch.ops.aten, op).data, x, torch.tensor(sizes), hx, parameters, *rest)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", RNN)
def test_dtypes(op, dtype):
    module = layers(op, dtype, num_layers=2)
    rest = (True, 2, 0.0, False, False, False)
    half = 1e-3 if dtype is torch.float16 else 2e-2 if dtype is torch.bfloat16 else None
    x, hx = sample(4, 3, 5, dtype=dtype, scale=1.0), states(module, op, 3, dtype)
    parameters = [p.detach() for p in module.parameters()]
    check(getattr(torch.ops.aten, op).input, x, hx, parameters, *rest, rtol=half, atol=half)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_projections(bidirectional):
    module = layers("lstm", proj_size=3, num_layers=2, bidirectional=bidirectional)
    hx = states(module, "lstm", 2, torch.float32)
    parameters = [p.detach() for p in module.parameters()]
    check(torch.ops.aten.lstm.input, sample(4, 2, 5), hx, parameters, True, 2, 0.0, False, bidirectional, False)


def test_values_that_are_not_finite():
    module = layers("gru")
    x = sample(4, 3, 5)
    x[1, 0, 2], x[2, 1, 0] = float("nan"), float("inf")
    parameters = [p.detach() for p in module.parameters()]
    for op, weights in (("gru", parameters), ("rnn_relu", [p.detach() for p in layers("rnn_relu").parameters()])):
        check(getattr(torch.ops.aten, op).input, x, torch.zeros(1, 3, 6), weights, True, 1, 0.0, False, False, False)


class Tagger(torch.nn.Module):
    def __init__(self, op: str) -> None:
        super().__init__()
        self.rnn = layers(op, num_layers=2, bidirectional=True, batch_first=True)
        self.head = torch.nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0]).softmax(-1)


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("backends", [[], ["xnnpack"]], ids=str)
@pytest.mark.parametrize("op", every(2, RNN))
def test_programs_keep_layers_whole(op, backends):
    """Check any number of steps, which torch fixes at export, and a dynamic batch."""
    module = Tagger(op).eval()
    dims = {0: torch.export.Dim("batch", max=64)}
    exported = torch.export.export(module, (sample(3, 20, 5),), dynamic_shapes=(dims,))
    program = delegate.to_backend(exported, backends)
    assert len(program.report.nodes) < 12
    assert [n.backend for n in program.report.nodes if n.op == f"aten.{op}.input"] == ["portable"]
    for batch in (3, 1, 5):
        x = sample(batch, 20, 5)
        assert_same(program(x), module(x))


def test_dropout_between_layers():
    """Check zeros with the probability and the scale of the others, only in training and not after the last layer."""
    TABLE.seed(0)
    module = layers("rnn_relu", num_layers=2)
    parameters = [p.detach().abs() for p in module.parameters()]
    x, hx = torch.ones(1, 4000, 5), torch.zeros(2, 4000, 6)
    expected = torch.ops.aten.rnn_relu.input(x, hx, parameters, True, 2, 0.0, False, False, False)
    kernel = TABLE.find("aten.rnn_relu.input", {DType.float32})
    out = tuple(to_runtime(torch.empty_like(e)) for e in expected)
    arguments = [to_runtime(a) for a in (x, hx, parameters)]
    kernel.function(*arguments, True, 2, 0.5, True, False, False, out=out)
    result = torch.from_numpy(out[0])
    assert result.std(1).min() > 0
    assert_same(result.mean(1), expected[0].mean(1), 9e-3)  # 2.4e-3 is measured, of 4000 random rows
