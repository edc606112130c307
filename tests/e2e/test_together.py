"""Partitions that run at the same time, from the configuration and from plans, on a real backend."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import PartitionError
from delegate.program.instructions import walk
from delegate.program.model import Structure, StructuredCall
from tests.support.lowering import assert_runs, assert_same


def encoder(size: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, size))


class Towers(nn.Module):
    """Two encoders, a part before both and one behind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.text, self.image, self.head = nn.Linear(8, 8), encoder(), encoder(), nn.Linear(16, 4)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.stem(a))
        return self.head(torch.cat([self.text(a), self.image(a + 1)], 1))


class Heads(nn.Module):
    """A detector: three heads, the number of whose finds depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.boxes, self.scores, self.masks = encoder(), encoder(), encoder(), encoder()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.body(x)
        boxes, scores, masks = self.boxes(x), self.scores(x), self.masks(x)
        kept = torch.nonzero(scores.sum(1) > 0).squeeze(1)
        return boxes[kept], masks[kept] * 2, scores


class Written(nn.Module):
    """Each tower has a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = encoder(), encoder()
        self.register_buffer("seen", torch.zeros(3, 8))
        self.register_buffer("count", torch.zeros(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.text(x + self.seen), self.image(x - self.count)
        self.seen.add_(a)
        self.count.copy_(b * 2)
        return a + b


class Inside(nn.Module):
    """Towers in a body of control flow, whose parts hold an operator that the backend does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = encoder(), encoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def towers(x: torch.Tensor) -> torch.Tensor:
            return self.text(x) * self.image(x)

        return torch.cond(x.sum() > 0, towers, lambda x: x - 1, (x,))


class Between(nn.Module):
    """Towers of two partitions each: kernels run what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = Broken(), Broken()

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.text(a) + self.image(b)


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = encoder(), encoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.cumsum(torch.flip(self.first(x), [0]), 1))


X = torch.linspace(-1, 1, 24).reshape(3, 8)
ROWS = {0: torch.export.Dim("rows", min=1, max=64)}
PAIR = [["text", "image"]]
CASES: dict[str, tuple[type[nn.Module], tuple[torch.Tensor, ...], Any, Any, int]] = {
    "towers": (Towers, (X,), None, PAIR, 1),
    "dynamic": (Towers, (X,), (ROWS,), PAIR, 1),
    "heads": (Heads, (X,), None, [["boxes", "scores", "masks"]], 1),
    "states": (Written, (X,), None, PAIR, 1),
    "between": (Between, (X, X * 2), None, PAIR, 1),
    "two groups": (Between, (X, X * 2), None, [["text.first", "image.first"], ["text.second", "image.second"]], 2),
}


def config(together: Any, **more: Any) -> dict[str, Any]:
    return {"version": 1, "backends": ["xnnpack"], "partitioning": {"together": together}, **more}


def exported(name: str) -> tuple[torch.export.ExportedProgram, nn.Module, tuple[torch.Tensor, ...]]:
    module, inputs, shapes, _, _ = CASES[name]
    torch.manual_seed(0)
    made = module().eval()
    with torch.no_grad():
        return torch.export.export(made, inputs, dynamic_shapes=shapes), made, inputs


def branches(program: Any) -> list[int]:
    """How many branches each call has whose branches may run at the same time."""
    calls = (c for m in program.program.methods for c in walk(m.instructions) if isinstance(c, StructuredCall))
    return [len(c.blocks) for c in calls if c.kind is Structure.PARALLEL]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_torch_gives(name, kept, tmp_path):
    together, count = CASES[name][3:]
    ep, module, inputs = exported(name)
    program = delegate.to_backend(ep, config=config(together, fallback={"keep": kept}))
    assert branches(program) == [len(group) for group in together]
    assert len(program.plan.together) == count
    plain = delegate.to_backend(ep, "xnnpack")
    program.save(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg") as loaded, torch.no_grad():
        for turn in range(4):
            given = tuple(x * (turn + 1) for x in inputs)
            expected = module(*given)
            made = program(*given)
            assert_same(made, expected)
            assert_same(plain(*given), expected)
            flat = made if isinstance(made, tuple) else (made,)
            again = loaded(*(x.numpy() for x in given))
            for first, second in zip(flat, again if isinstance(again, tuple) else (again,), strict=True):
                np.testing.assert_array_equal(first.numpy(), second)


@pytest.mark.parametrize("name", CASES)
def test_the_plan_says_it_and_does_it_again(name, tmp_path):
    ep, _, inputs = exported(name)
    first = delegate.to_backend(ep, config=config(CASES[name][3]))
    first.plan.save(tmp_path / "plan.json")
    again = delegate.to_backend(exported(name)[0], "xnnpack", placement=delegate.SavedPlan.load(tmp_path / "plan.json"))
    assert again.plan == first.plan == delegate.SavedPlan.load(tmp_path / "plan.json")
    assert branches(again) == branches(first)
    assert_same(again(*inputs), first(*inputs))


def test_bodies_of_control_flow_have_branches_too():
    """torch tells no modules there: a plan that was edited names the nodes."""
    torch.manual_seed(0)
    module = Inside().eval()
    with torch.no_grad():
        ep = torch.export.export(module, (X + 1,))
    data = json.loads(delegate.to_backend(ep, "xnnpack").plan.to_json())
    (whole,) = (p for p in data["partitions"] if p["graph"] == "forward.true_graph_0")
    data["partitions"].remove(whole)
    for name, nodes in (("a", whole["nodes"][:3]), ("b", whole["nodes"][3:6]), ("c", whole["nodes"][6:])):
        data["partitions"].append({**whole, "name": name, "nodes": nodes})
    data["together"] = [[["a"], ["b"]]]
    program = delegate.to_backend(ep, "xnnpack", placement=delegate.SavedPlan.from_json(json.dumps(data)))
    assert branches(program) == [2]
    for given in (X + 1, X - 1, X * 3 + 1):
        with torch.no_grad():
            assert_same(program(given), module(given))


def test_dynamic_sizes_share_the_memory_of_the_plan():
    ep, module, _ = exported("dynamic")
    program = delegate.to_backend(ep, config=config(PAIR))
    assert_runs(program, "xnnpack")
    for rows in (1, 2, 64, 3, 33):
        given = torch.randn(rows, 8)
        with torch.no_grad():
            assert_same(program(given), module(given))


def test_what_moved_is_told():
    ep, _, _ = exported("towers")
    beside = delegate.to_backend(ep, config=config(PAIR)).plan
    data = json.loads(beside.to_json())
    del data["together"]
    apart = delegate.SavedPlan.from_json(json.dumps(data))
    (line,) = apart.differences(beside)
    towers = [f"forward: {tower}.0:aten.linear.default#0" for tower in ("image", "text")]
    assert line == " now runs at the same time as ".join(towers)
    assert beside.differences(apart) == (line.replace("now runs", "no longer runs"),)
    assert beside.differences(beside) == ()
    assert branches(delegate.to_backend(ep, "xnnpack", placement=apart)) == []


@pytest.mark.parametrize(
    ("together", "message"),
    [
        (3, "together should be a list of groups"),
        ([["xnnpack_0", "xnnpack_1"]], "together should be a list of groups"),
        ([[["xnnpack_0"], [1]]], "together should be a list of groups"),
        ([[["xnnpack_0"]]], "at least two branches"),
        ([[["xnnpack_0"], []]], "each branch a partition"),
        ([[["xnnpack_0"], ["acme_3"]]], "'acme_3', which is not a partition"),
        ([[["xnnpack_0"], ["xnnpack_0"]]], "'xnnpack_0', twice"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(together, message):
    data = json.loads(delegate.to_backend(exported("towers")[0], config=config(PAIR)).plan.to_json())
    data["together"] = together
    with pytest.raises(PartitionError, match=message):
        delegate.SavedPlan.from_json(json.dumps(data))


@pytest.mark.parametrize("together", [[["stem", "text"]], [["text", "head"]], [["text", "image", "head"]]], ids=str)
def test_what_needs_the_other_cannot_run_at_the_same_time(together):
    with pytest.raises(PartitionError, match=r"xnnpack_\d and xnnpack_\d cannot run at the same time"):
        delegate.to_backend(exported("towers")[0], config=config(together))


def test_a_pattern_that_matches_nothing_is_noted():
    program = delegate.to_backend(exported("towers")[0], config=config([["text", "imgae"]]))
    assert branches(program) == []
    notes = " ".join(program.report.notes)
    assert "together 'imgae' matches no module" in notes
    assert "1 of 1 groups run nothing at the same time" in notes


class Drawn(nn.Module):
    """Random numbers between two parts: their order is the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = Noise(), Noise()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.text(x) + self.image(x)


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = encoder(), encoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.bernoulli(torch.sigmoid(self.first(x))))


def test_the_order_of_random_numbers_is_kept():
    ep = torch.export.export(Drawn().eval(), (X,))
    with pytest.raises(PartitionError, match="or their order matters"):
        delegate.to_backend(ep, config=config(PAIR))
    firsts = delegate.to_backend(ep, config=config([["text.first", "image.first"]]))
    assert branches(firsts) == [2]


class Attending(nn.Module):
    """Attention on kernels between two layers, which draws where there is dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).unsqueeze(0)
        return self.second(torch.nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=self.dropout))


class Both(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.left, self.right = Attending(dropout), Attending(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) + self.right(x)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_draws_nothing_without_dropout(dropout):
    x = torch.randn(3, 8)
    module = Both(dropout).eval()
    ep = torch.export.export(module, (x,))
    rules = {"exclude": ["aten.scaled_dot_product_attention.default"], "min_partition_size": 0}
    asked = {"backends": ["xnnpack"], "partitioning": {**rules, "together": [["left", "right"]]}}
    if dropout:
        with pytest.warns(UserWarning, match="training mode"), pytest.raises(PartitionError, match="order matters"):
            delegate.to_backend(ep, config=asked)
        return
    program = delegate.to_backend(ep, config=asked)
    assert_runs(program, "xnnpack", dict.fromkeys(rules["exclude"], 2))
    assert branches(program) == [2]
    assert_same(program(x), module(x))


def test_threads_are_shared(monkeypatch):
    ep, _, _ = exported("towers")
    seen: list[Any] = []
    from delegate.backends.xnnpack.runtime.delegate import XnnpackRuntime

    made = XnnpackRuntime.init_with_data

    def watched(self: Any, blob: Any, data: Any, specs: Any) -> Any:
        seen.append(specs["threads"])
        return made(self, blob, data, specs)

    monkeypatch.setattr(XnnpackRuntime, "init_with_data", watched)
    monkeypatch.setattr("delegate.runtime.parallel.cores", lambda: 6)
    program = delegate.to_backend(ep, config=config(PAIR))
    program(X)
    names = {d.name for d in program.program.delegates}
    told = dict(zip([d.name for d in program.program.delegates], seen, strict=True))
    together = {name for group in program.plan.together for branch in group for name in branch}
    assert {told[n] for n in together} == {3}
    assert {told[n] for n in names - together} == {None}
