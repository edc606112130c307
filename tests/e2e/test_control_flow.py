"""torch's control flow from export to run: every model as eager, on portable kernels and with partitions in bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.export import Dim

from delegate.program.model import Block, DelegateCall, Instruction, StructuredCall
from tests.lowering import assert_same, compiled

PLACES = {"portable": [], "xnnpack": ["xnnpack"]}


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@dataclass(frozen=True)
class Case:
    """A model and the inputs that it is run on; the first are those of the export.

    Args:
        name: of the test.
        model: the module, or the function that it is to be.
        inputs: several calls.
        dynamic: dynamic shapes of the export.
        delegated: how many partitions XNNPACK has inside of bodies, at least.
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


CASES = [
    Case("cond", lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() + x, (x,)), SIGNS, None, 2),
    Case(
        "cond on a size",
        lambda x: torch.cond(x.shape[0] > 3, lambda x: x * 2, lambda x: x - 1, (x,)),
        ((X,), (seeded(7, 4),)),
        (({0: ROWS},),),
        2,
    ),
    Case("cond of copies", cond_swaps, ((X, Y), (-X.abs(), Y), (X.abs(), Y)), None, 0),
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
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_as_eager(case: Case, place: str) -> None:
    module = case.module
    program = compiled(module, case.inputs[0], backends=PLACES[place], dynamic_shapes=case.dynamic)
    assert delegated_in_bodies(program.program.methods[0].instructions) >= (case.delegated if PLACES[place] else 0)
    for inputs in (*case.inputs, *case.inputs):
        assert_same(program(*inputs), module(*inputs))


def delegated_in_bodies(instructions: tuple[Instruction, ...], *, inside: bool = False) -> int:
    """How many calls of delegates stand in bodies."""
    count = 0
    for call in instructions:
        blocks: tuple[Block, ...] = call.blocks if isinstance(call, StructuredCall) else ()
        count += inside and isinstance(call, DelegateCall)
        count += sum(delegated_in_bodies(block.instructions, inside=True) for block in blocks)
    return count
