"""What depends on constants alone is computed once, in the first call, for all contexts and sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim, export

import delegate
from delegate.compiled import CompiledProgram
from delegate.errors import KernelError
from delegate.program.file import serialize
from delegate.testing import assert_same

torch.manual_seed(0)
WEIGHT = torch.randint(-128, 127, (6, 4), dtype=torch.int8)
SCALES = torch.rand(6, dtype=torch.float64) + 0.01
ZEROS = torch.arange(6) - 3
X = torch.randn(3, 4)
quantized = torch.ops.quantized_decomposed


def decoded(weight: torch.Tensor) -> torch.Tensor:
    return quantized.dequantize_per_channel(weight, SCALES, ZEROS, 0, -128, 127, torch.int8)


class Layer(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        import torch.ao.quantization.fx._decomposed  # noqa: F401 - defines the operators

        self.function = function
        self.register_buffer("weight", WEIGHT.clone())

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.weight)


class Tuple(nn.Module):
    """Another user of the same constant in the body of control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", WEIGHT.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = decoded(self.weight).T.contiguous()
        return torch.cond(x.sum() > 0, lambda a: a @ weight, lambda a: a @ weight * 2, (x,))


CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a layer": lambda x, w: x @ decoded(w).T,
    "a chain, a view of it, and a part": lambda x, w: x @ ((decoded(w) * 2 + 1).T[:, :5] - 0.5),
    "a result": lambda x, w: (x + 1, decoded(w)),
    "a view of a result": lambda x, w: (x + 1, decoded(w).reshape(-1)),
    "a result and an operand": lambda x, w: (x @ decoded(w).T, decoded(w)),
    "one read twice, far apart": lambda x, w: (x @ (d := decoded(w)).T).relu().sum() * d + d,
    "rows of it by index": lambda x, w: nn.functional.embedding((x[:, 0] > 0).long(), decoded(w)),
}


def both(program: CompiledProgram) -> list[Callable[..., Any]]:
    """The program here, and from bytes."""
    loaded = delegate.load(serialize(program.program))
    return [program, lambda *x: torch.utils._pytree.tree_map(torch.from_numpy, loaded(*(a.numpy() for a in x)))]


@pytest.mark.parametrize("name", CASES)
def test_results_stay_right_from_call_to_call(name):
    module = Layer(CASES[name])
    for run in both(delegate.to_backend(export(module, (X,)), [])):
        for scale in (1, -2, 0.5):
            wanted = module(X * scale)
            for got, expected in zip(*map(torch.utils._pytree.tree_leaves, (run(X * scale), wanted)), strict=True):
                assert_same(got, expected)


def test_control_flow_and_sizes():
    assert_same(delegate.to_backend(export(Tuple(), (X,)), [])(-X), Tuple()(-X))
    layer, rows = Layer(CASES["a layer"]), Dim("rows", min=1, max=64)
    program = delegate.to_backend(export(layer, (X,), dynamic_shapes=({0: rows},)), [])
    for count in (3, 1, 64, 7, 3):
        x = torch.randn(count, 4)
        assert_same(program(x), layer(x))


def calls_of(program: Any, *x: Any, times: int) -> dict[str, int]:
    with program.profile() as profile:
        for _ in range(times):
            program(*x)
    return {t.what.removeprefix("quantized_decomposed."): t.count for t in profile.timings}


def test_it_is_computed_once_for_all_contexts_and_sizes():
    rows = Dim("rows", min=1, max=64)
    program = delegate.to_backend(export(Layer(CASES["a layer"]), (X,), dynamic_shapes=({0: rows},)), [])
    first = calls_of(program, X, times=3)
    assert first["dequantize_per_channel.default"] == 1
    assert sum(first.values()) == 4
    for context, size in ((program.context(), 3), (program, 5), (program.context(), 9)):
        again = calls_of(context, torch.randn(size, 4), times=2)
        assert "dequantize_per_channel.default" not in again
        assert sum(again.values()) >= 2


def test_random_numbers_of_constants_are_others_in_every_call():
    layer = Layer(lambda x, w: x.sum() * 0 + torch.rand_like(decoded(w)))
    program = delegate.to_backend(export(layer, (X,)), [])
    assert not torch.equal(program(X), program(X))


def test_contexts_begin_at_the_same_time():
    layer = Layer(CASES["a chain, a view of it, and a part"])
    program = delegate.to_backend(export(layer, (X,)), [])
    contexts = [program.context() for _ in range(8)]
    start, results = threading.Barrier(8), [torch.empty(0)] * 8

    def run(i: int) -> None:
        start.wait()
        results[i] = contexts[i](X)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert_same(result, layer(X))


def test_what_takes_far_more_memory_than_constants_is_computed_in_every_call():
    class Grown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seed", torch.arange(4, dtype=torch.int8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            grown = quantized.dequantize_per_tensor(self.seed, 0.5, 0, -128, 127, torch.int8)
            return x * grown.repeat(100_000).reshape(100_000, 4)[:3]

    program = delegate.to_backend(export(Grown(), (X,)), [])
    counts = calls_of(program, X, times=3)
    assert counts["dequantize_per_tensor.default"] == 3
    assert_same(program(X), Grown()(X))


def test_a_kernel_of_somebody_else_runs_in_every_call():
    table = delegate.KernelTable("mine")
    ran = []

    @table.kernel("quantized_decomposed.dequantize_per_channel.default", dtypes=delegate.DType)
    def decode(x: Any, scales: Any, zeros: Any, axis: int, *_rest: Any, out: Any) -> None:
        ran.append(1)
        np.copyto(out, (x.astype(np.int64) - zeros[:, None]) * scales[:, None], casting="unsafe")

    layer = Layer(CASES["a layer"])
    loaded = delegate.load(serialize(delegate.to_backend(export(layer, (X,)), []).program), kernels=[table])
    for _ in range(3):
        assert_same(loaded(X.numpy()), layer(X))
    assert len(ran) == 3


def test_a_failure_is_told_in_every_call(monkeypatch):
    program = delegate.to_backend(export(Layer(CASES["a layer"]), (X,)), [])

    def fail(*_args: Any, **_more: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr("delegate.kernels.quantization._decode", fail)
    for _ in range(2):
        with pytest.raises(KernelError, match=r"dequantize_per_channel"):
            program(X)
    monkeypatch.undo()
    assert_same(program(X), Layer(CASES["a layer"])(X))
