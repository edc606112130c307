"""Memory planned at the bounds of sizes: one plan for all shapes, and views that hold only at some."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.export import Dim

import delegate
from delegate.memory import storage
from delegate.memory.planner import largest_live_sum
from delegate.program.lifetimes import Lifetime, Lifetimes
from delegate.program.model import StorageKind
from delegate.program.segments import align
from tests.support.lowering import assert_same, compiled


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)

    def forward(self, x):
        return (self.second(self.first(x).relu()) * x.shape[0]).softmax(-1).transpose(0, 1).reshape(-1)


BATCH = Dim("batch", min=1, max=32)
ROWS = (1, 2, 3, 31, 32, 5)


@pytest.fixture
def plans(monkeypatch):
    """How often memory was planned, counted."""
    made = []

    def plan(lifetimes):
        made.append(len(lifetimes))
        return original(lifetimes)

    original = storage.plan_memory
    monkeypatch.setattr(storage, "plan_memory", plan)
    return made


def test_another_shape_costs_no_planning(plans):
    module = Layers().eval()
    program = compiled(module, (torch.randn(4, 32),), dynamic_shapes=({0: BATCH},))
    assert len(plans) == 1
    for rows in ROWS:
        x = torch.randn(rows, 32)
        assert_same(program(x), module(x))
    assert len(plans) == 1


def test_sizes_without_bounds_are_planned_per_shape(plans):
    program = compiled(Layers(), (torch.randn(4, 32),), dynamic_shapes=({0: Dim("batch", min=1)},))
    assert program.program.methods[0].arenas == (-1,)
    before = len(plans)
    for rows in (2, 3, 2, 3):
        program(torch.randn(rows, 32))
    assert len(plans) == before + 2


def test_an_arena_that_may_never_be_needed_is_not_set_aside():
    program = compiled(Layers(), (torch.randn(4, 32),), dynamic_shapes=({0: Dim("batch", min=1, max=2**40)},))
    assert program.program.methods[0].arenas == (-1,)
    assert program(torch.randn(3, 32)).shape == (24,)


def test_the_arena_is_what_is_alive_at_the_bounds():
    method = compiled(Layers(), (torch.randn(4, 32),), dynamic_shapes=({0: BATCH},)).program.methods[0]
    lives = Lifetimes(method, [v.storage for v in method.values])
    blocks = [
        Lifetime(align(4 * int(np.prod([d if isinstance(d, int) else d.evaluate({0: 32}) for d in v.shape]))),
                 lives.start[i], lives.end[i])
        for i, v in enumerate(method.values)
        if v.storage.kind is StorageKind.ARENA
    ]  # fmt: skip
    assert blocks
    assert method.arenas[0] <= 1.05 * largest_live_sum(blocks)


def head(x, count):
    """The first columns, flat: all of a row-major tensor at the bound, strided for any smaller count."""
    k = count.item()
    torch._check(k >= 0)
    torch._check(k <= 3)
    return x[:, :k].reshape(-1) * 2


@pytest.mark.parametrize("of", [lambda x: x, lambda x: (x + 1).exp()], ids=["input", "arena"])
def test_a_view_that_holds_at_the_bound_alone(of, plans):
    class Module(torch.nn.Module):
        def forward(self, x, count):
            return head(of(x), count)

    module, x = Module(), torch.randn(4, 3)
    program = compiled(module, (x, torch.tensor(3)))
    for count in (3, 2, 3, 1, 0, 2):
        assert_same(program(x, torch.tensor(count)), module(x, torch.tensor(count)))


def test_many_shapes_take_bounded_memory(tmp_path):
    """SpecializationCache of old shapes are let go: no more arrays are alive after 60 shapes than after 20."""
    import gc

    program = compiled(Layers(), (torch.randn(4, 32),), dynamic_shapes=({0: Dim("batch", min=1)},))
    program.save(tmp_path / "p.dlg")
    loaded = delegate.load(tmp_path / "p.dlg")

    def alive(shapes):
        for rows in shapes:
            loaded(np.ones((rows, 32), np.float32))
        gc.collect()
        return sum(type(o).__name__ == "KernelStep" for o in gc.get_objects())

    before = alive(range(2, 22))
    assert before > 0
    assert alive(range(22, 62)) == before
