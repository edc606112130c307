"""Texts of guards, as each version of torch writes them, against Python's own evaluation for several sizes."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from delegate.emit.guards import guards
from delegate.emit.symbols import MethodSymbols

H, W = "L['x'].size()[0]", "L['x'].size()[1]"
# Torch 2.13 writes max and min, torch 2.14 writes torch.sym_max and torch.sym_min.
TEXTS = (
    f"max(1, {H} + ((-1)*{H} % 4)) != {W}",
    f"torch.sym_max(1, {H} + ((-1)*{H} % 4)) != {W}",
    f"torch.sym_max(1, torch.sym_max({H} // 2, {W})) >= 5",
    f"torch.sym_min({H}, {W}) == torch.sym_min(4, {H})",
    f"min({H}, {W}, 5) > 3",
    f"abs({H} - 2*{W}) <= 3",
    f"(({H} - 1) if {H} > {W} else ({W} + 1)) == 6",
    f"math.trunc(torch.sym_float({H}) / torch.sym_float({W})) == 1 or not ({H} < 4)",
)


@pytest.fixture(scope="module")
def sized() -> tuple[Any, MethodSymbols]:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    fake = mode.from_tensor(torch.empty(5, 7), symbolic_context=context)
    return fake, MethodSymbols([fake], {}, ["x"])


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_its_expression(sized, text):
    fake, symbols = sized
    (expr,) = guards([text], {"x": fake}, symbols, pytest.fail)
    values = set()
    for sizes in product(range(1, 9), repeat=2):
        wanted = eval(text, {"torch": torch, "math": math, "L": {"x": torch.empty(sizes)}})
        assert bool(expr.evaluate(dict(enumerate(sizes)))) == wanted, sizes
        values.add(wanted)
    assert values == {True, False}
