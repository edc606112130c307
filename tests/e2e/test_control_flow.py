"""torch's control flow from export to run: every model as eager, on portable kernels and with partitions in bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.export import Dim

import delegate
from delegate.cli.inspect import inspect
from delegate.errors import LoweringError, PartitionError
from delegate.program.model import Block, DelegateCall, Instruction, StructuredCall
from tests.support.functions import Function
from tests.support.lowering import answers, assert_same, compiled
from tests.support.processes import run_without_torch
from tests.support.sampling import every

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's own
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
]


@dataclass(frozen=True)
class Case:
    """A model and the inputs that it is run on; the first are those of the export.

    Args:
        name: of the test.
        model: the module, or the function that it is to be.
        inputs: several calls.
        dynamic: dynamic shapes of the export.
        delegated: how many partitions XNNPACK has inside of bodies.
    """

    name: str
    model: Callable[..., Any]
    inputs: tuple[tuple[torch.Tensor, ...], ...]
    dynamic: Any = None
    delegated: int = 1

    @property
    def module(self) -> nn.Module:
        return self.model if isinstance(self.model, nn.Module) else Function(self.model)


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = seeded(3, 4), seeded(3, 4, seed=1)
SIGNS = ((X.abs(),), (-X.abs(),))
ZERO = torch.zeros((), dtype=torch.int64)
ROW = seeded(4)
ROWS = Dim("rows", min=2)


def cond_swaps(a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.cond(a.sum() > 0, lambda a, b: (a + 0, b * 1), lambda a, b: (b.clone(), a.clone()), (a, b))


class Decoder(nn.Module):
    """Greedy decoding until a token ends it; the cache is a state that the loop carries."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.register_buffer("cache", torch.zeros(8, 16))

    def forward(self, token: torch.Tensor) -> Any:
        def body(i: Any, token: Any, tokens: Any, cache: Any) -> Any:
            hidden = self.embedding(token)[0]
            cache = cache.index_copy(0, i.view(1), hidden.view(1, 16))
            seen = torch.softmax(cache @ hidden, 0) @ cache
            token = self.head(seen).argmax(-1, keepdim=True)
            return i + 1, token.clone(), tokens.index_copy(0, i.view(1), token), cache

        def goes_on(i: Any, token: Any, tokens: Any, cache: Any) -> Any:
            return (i < 8) & (token[0] != 3)

        start = (ZERO.clone(), token, torch.zeros(8, dtype=torch.int64), self.cache.clone())
        count, _, tokens, cache = while_loop(goes_on, body, start)
        self.cache.copy_(cache)
        return tokens, count


class Flagged(nn.Module):
    """A convolution with normalisation or nothing, by a flag; another choice by a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1))
        self.register_buffer("on", torch.tensor(True))

    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> Any:
        first = torch.cond(flag, self.net, lambda x: x * 0.5, (x,))
        return first, torch.cond(self.on, lambda x: x * 3, lambda x: x.cos(), (x,))


class Lstm(nn.Module):
    """A cell that a scan steps along a sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.of_input, self.of_hidden = nn.Linear(8, 64), nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> Any:
        def step(carried: Any, x: Any) -> Any:
            hidden, cell = carried
            i, f, g, o = (self.of_input(x) + self.of_hidden(hidden)).chunk(4, -1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            return (hidden, cell), hidden.clone()

        return scan(step, (torch.zeros(x.shape[1], 16), torch.zeros(x.shape[1], 16)), x)


class Nested(nn.Module):
    """A condition in a loop, both branches with weights, one with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4) * 2)

    def forward(self, x: torch.Tensor) -> Any:
        def body(i: Any, x: Any) -> Any:
            grown = lambda x: self.first(x) * self.scale  # noqa: E731
            return i + 1, torch.cond(x.sum() > 0, grown, lambda x: torch.relu(self.second(x)) - x, (x,))

        return while_loop(lambda i, x: (i < 6) & (x.abs().max() < 100), body, (ZERO.clone(), x))


class Mapped(nn.Module):
    """A small convolutional network on every image by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return map_over(lambda image: self.head(self.net(image[None]).flatten(1)).softmax(-1)[0], x)


class Experts(nn.Module):
    """Layers that a gate skips."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(3))
        self.gate = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> Any:
        for expert in self.experts:
            opens = torch.sigmoid(self.gate(x)).mean() > 0.5
            x = torch.cond(opens, lambda x, expert=expert: x + expert(x), lambda x: x * 1.5, (x,))
        return x


class Greedy(nn.Module):
    """Decoding of a batch from given scores: booleans and integers are carried."""

    def forward(self, scores: torch.Tensor) -> Any:
        steps, batch, _ = scores.shape

        def body(i: Any, done: Any, tokens: Any) -> Any:
            best = scores.index_select(0, i.view(1)).squeeze(0).argmax(-1)
            best = torch.where(done, torch.zeros_like(best), best)
            return i + 1, done | (best == 0), tokens.index_copy(1, i.view(1), best[:, None])

        start = (ZERO.clone(), torch.zeros(batch, dtype=torch.bool), torch.zeros(batch, steps, dtype=torch.int64))
        return while_loop(lambda i, done, _: (i < steps) & ~done.all(), body, start)


class Places(nn.Module):
    """A loop over an integer that reads and writes rows at its place, and computes with it."""

    def forward(self, x: torch.Tensor) -> Any:
        def body(i: Any, y: Any) -> Any:
            torch._check(i >= 0)
            torch._check(i < x.shape[0])
            y = y.clone()
            y[i] = x[i] * (i + 1) + i // 2 - torch.clamp(x[i], 0, i)
            return i + 1, y

        return while_loop(lambda i, y: i < x.shape[0] - 1, body, (0, torch.zeros(5, 16)))[1]


class Switching(nn.Module):
    """Branches that read states, chosen by a state, and that make its next value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", ZERO.clone())
        self.register_buffer("memory", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> Any:
        branches = (lambda x: (x + self.memory, self.memory + 1), lambda x: (x - self.memory, self.memory * 2))
        y, memory = torch.cond(self.count % 2 == 0, *branches, (x,))
        self.count.add_(1)
        self.memory.copy_(memory)
        return y


class Running(nn.Module):
    """A scan whose carried value lives on from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        mean, y = scan(lambda mean, x: (mean * 0.5 + x, mean - x), self.mean, x)
        self.mean.copy_(mean)
        return y


CASES = [
    Case("cond", lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() + x, (x,)), SIGNS, None, 2),
    Case(
        "cond on a size",
        lambda x: torch.cond(x.shape[0] > 3, lambda x: x * 2, lambda x: x - 1, (x,)),
        ((X,), (seeded(7, 4),)),
        (({0: ROWS},),),
        2,
    ),
    Case("cond of copies", cond_swaps, ((X, Y), (-X.abs(), Y), (X.abs(), Y)), None, 1),
    Case(
        "while that swaps",
        lambda n, a, b: while_loop(
            lambda i, a, b: i > 0, lambda i, a, b: (i - 1, b.clone(), a.clone()), (n.clone(), a, b)
        ),
        ((ZERO + 3, X, Y), (ZERO, X, Y), (ZERO + 4, X, Y)),
        None,
        0,
    ),
    Case(
        "while with an integer",
        lambda x: while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2 + i), (0, x))[1],
        ((X,), (Y,)),
    ),
    Case(
        "scan",
        lambda x: scan(lambda c, x: (c + x, c * x + 1), torch.zeros(4), x),
        ((X,), (Y,)),
    ),
    Case(
        "scan backwards along another dimension",
        lambda x: scan(lambda c, x: (c + x, c * x + 1), torch.ones(3), x, dim=1, reverse=True),
        ((X,), (Y,)),
    ),
    Case(
        "scan of symbolic length and width",
        lambda c, x: scan(lambda c, x: (c + x, c * x + 1), c, x),
        ((X, seeded(6, 3, 4)), (seeded(5, 4), seeded(2, 5, 4)), (X, seeded(9, 3, 4))),
        (({0: Dim("width", min=2)}, {0: Dim("length", min=2), 1: Dim("width", min=2)}),),
    ),
    Case("map", lambda x, y: map_over(lambda x, y: x.sin() + y, x, y), ((X, ROW), (Y, ROW))),
    Case(
        "map with nothing among its results",
        lambda x, y: map_over(lambda x, y: (x * 2 + y, None, x - y), x, y),
        ((X, ROW), (seeded(5, 4), ROW)),
        (({0: ROWS}, None),),
    ),
    Case("cond in while, with weights", Nested(), ((X,), (Y,)), None, 4),
    Case("greedy decoding with a state", Decoder(), ((torch.tensor([1]),), (torch.tensor([5]),)), None, 1),
    Case(
        "cond on a flag and on a buffer",
        Flagged(),
        ((seeded(1, 3, 8, 8), torch.tensor(True)), (seeded(1, 3, 8, 8), torch.tensor(False))),
        None,
        4,
    ),
    Case(
        "LSTM cell",
        Lstm(),
        ((seeded(5, 2, 8),), (seeded(7, 3, 8),)),
        ({0: Dim("length", min=2, max=16), 1: Dim("batch", min=2, max=8)},),
    ),
    Case("convolutions mapped over a batch", Mapped(), ((seeded(3, 3, 12, 12),),)),
    Case("layers that are skipped", Experts(), ((seeded(2, 8),), (seeded(2, 8, seed=1),)), None, 6),
    Case("booleans and integers carried", Greedy(), ((seeded(6, 3, 10),),), None, 0),
    Case("places that change", Places(), ((seeded(5, 16),),), None, 1),
    Case(
        "cond on an integer in a loop",
        lambda x: while_loop(
            lambda i, x: i < 5,
            lambda i, x: (i + 1, torch.cond(i % 2 == 0, lambda x: x + 1, lambda x: x * 2, (x,))),
            (0, x),
        )[1],
        ((X,),),
        None,
        2,
    ),
    Case(
        "integers that tensors hold",
        lambda x, k: while_loop(
            lambda i, x: i < k.item(), lambda i, x: (i + 1, x * i.item() + k.item()), (ZERO.clone(), x)
        ),
        ((X, ZERO + 3), (X, ZERO)),
        None,
        0,
    ),
    Case("states in branches", Switching(), ((X,), (Y,)), None, 2),
    Case("a state carried by a scan", Running(), ((X,), (Y,))),
]

# Case -> how many nodes XNNPACK runs, and how many it refuses for each reason; nodes of bodies count too.
ON_XNNPACK: dict[str, dict[str, int]] = {
    "cond": {"runs": 5, "operator": 2},
    "cond on a size": {"operator": 1, "runs": 2},
    "cond of copies": {"runs": 3, "operator": 2, "too_small": 2},
    "while that swaps": {"operator": 2, "dtype": 1, "too_small": 2},
    "while with an integer": {"operator": 1, "runs": 1, "dynamic_shape": 1},
    "scan": {"operator": 1, "runs": 3},
    "scan backwards along another dimension": {"runs": 7, "operator": 1},
    "scan of symbolic length and width": {"operator": 1, "runs": 3},
    "map": {"operator": 1, "runs": 2},
    "map with nothing among its results": {"operator": 1, "runs": 3},
    "cond in while, with weights": {"operator": 6, "runs": 8, "dtype": 1},
    "greedy decoding with a state": {"operator": 6, "dtype": 4, "too_small": 2, "non_constant": 1, "runs": 4},
    "cond on a flag and on a buffer": {"operator": 2, "runs": 7},
    "LSTM cell": {"dynamic_shape": 1, "operator": 1, "runs": 13},
    "convolutions mapped over a batch": {"operator": 1, "runs": 9},
    "layers that are skipped": {"runs": 24, "operator": 6},
    "booleans and integers carried": {"operator": 11, "dtype": 5, "non_constant": 1, "too_small": 1},
    "places that change": {"operator": 1, "dynamic_shape": 4, "non_constant": 2, "too_small": 1, "runs": 2},
    "cond on an integer in a loop": {"operator": 2, "runs": 2},
    "integers that tensors hold": {"operator": 4, "dynamic_shape": 3, "dtype": 1},
    "states in branches": {"dtype": 2, "operator": 2, "runs": 4},
    "a state carried by a scan": {"operator": 1, "runs": 3},
}


@pytest.mark.parametrize("case", every(3, CASES), ids=lambda c: c.name)
def test_as_eager(case: Case) -> None:
    module = case.module.eval()
    exported = torch.export.export(module, case.inputs[0], dynamic_shapes=case.dynamic)
    programs = [delegate.to_backend(exported, backends) for backends in ([], ["xnnpack"])]
    assert [delegated_in_bodies(p.program.methods[0].instructions) for p in programs] == [0, case.delegated]
    assert answers(programs[1], "xnnpack") == ON_XNNPACK[case.name]
    has_states = any(True for _ in module.buffers())  # the same call again gives another result
    for inputs in case.inputs * (2 if has_states else 1):
        expected = module(*inputs)
        for program in programs:
            assert_same(program(*inputs), expected)


def delegated_in_bodies(instructions: tuple[Instruction, ...], *, inside: bool = False) -> int:
    """How many calls of delegates stand in bodies."""
    count = 0
    for call in instructions:
        blocks: tuple[Block, ...] = call.blocks if isinstance(call, StructuredCall) else ()
        count += inside and isinstance(call, DelegateCall)
        count += sum(delegated_in_bodies(block.instructions, inside=True) for block in blocks)
    return count


def test_weights_that_only_delegates_in_bodies_use_are_not_stored_again() -> None:
    portable = {"aten.gt.Scalar": 3, "cond": 3}
    program = compiled(Experts(), (seeded(2, 8),), backends=["xnnpack"], portable=portable).program
    assert not [c for c in program.constants if c.name.startswith("experts")]


@pytest.mark.parametrize(("branch", "left"), [(lambda x: x + 1, ""), (lambda x: x.cumsum(0), "cumsum")])
def test_control_flow_itself_does_not_stay_portable(branch: Callable[..., Any], left: str) -> None:
    module = Function(lambda flag, x: torch.cond(flag, lambda x: x * 2, branch, (x,)))
    config = {"backends": ["xnnpack"], "policy": {"portable": "error"}}
    given = (torch.tensor(False), X)
    if left:
        with pytest.raises(PartitionError, match=f"1 node stays on portable kernels: .*{left}"):
            compiled(module, given, config=config)
    else:
        assert_same(compiled(module, given, config=config, portable={"cond": 1})(*given), X + 1)


# What XNNPACK refuses of `Nested`: control flow, and what its conditions are computed by.
OF_NESTED = {
    "while_loop": 1, "aten.lt.Scalar": 2, "aten.bitwise_and.Tensor": 1, "aten.add.Tensor": 1, "aten.gt.Scalar": 1,
    "cond": 1,
}  # fmt: skip


def test_the_report_names_nodes_of_bodies() -> None:
    report = compiled(Nested(), (X,), backends=["xnnpack"], portable=OF_NESTED).report
    inside = {n.name: n.backend for n in report.nodes if n.name.startswith("while_loop_body_graph_0.true_graph_0.")}
    assert set(inside.values()) == {"xnnpack"}
    assert "while_loop_body_graph_0.cond" in {n.name for n in report.nodes}


def test_a_saved_program_runs_without_torch(tmp_path: Path) -> None:
    module = Nested()
    compiled(module, (X,), backends=["xnnpack"], portable=OF_NESTED).save(tmp_path / "model.dlg")
    with torch.no_grad():
        expected = list(module(X))
    assert_same(run_without_torch(tmp_path / "model.dlg", [X.numpy()]), expected, 1e-6)


def test_inspect_shows_bodies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(Nested(), (X,), backends=["xnnpack"], portable=OF_NESTED).save(tmp_path / "model.dlg")
    inspect(tmp_path / "model.dlg")
    text = capsys.readouterr().out
    lines = [line.split("(")[0].strip() for line in text.splitlines()]
    order = ["condition", "body", "then", "else"]
    assert [line for line in lines if line in order] == order
    assert text.count("delegate xnnpack_") == 4


def test_sizes_that_depend_on_data_go_through_branches() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        positive = x[x > 0]
        return torch.cond(positive.sum() > 3, lambda p: p * 2, lambda p: p + 1, (positive,))

    program = compiled(Function(function), (X,))
    for x in (X, Y, X.abs(), -X.abs()):
        assert_same(program(x), function(x))


REFUSED = {
    "a number where the operator takes no tensor": (
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, torch.roll(x, i)), (0, x))[1],
        "depends on data that is not available.*roll",
    ),
    "sizes that depend on data in a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x.nonzero().sum(), lambda x: (x > 0).sum(), (x,)),
        "nonzero.*outside of control flow",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(LoweringError, match=message):
        compiled(Function(function), (X,))
