"""Remainders and rounded quotients of floats are exact, whatever the magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

_SIZES = (0.0, 0.1, 0.5, 2.5, 3.0, 7.0, 2.0**23 + 0.5, 2.0**24 + 2, 1e8, 123456789.0, 1e10, 1e30, float("inf"))
_NUMBERS = (*_SIZES, *(-size for size in _SIZES))
_OF_TWO: dict[str, Callable[..., torch.Tensor]] = {
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor_divide": torch.floor_divide,
    "floor": partial(torch.div, rounding_mode="floor"),
    "trunc": partial(torch.div, rounding_mode="trunc"),
    "pow": torch.pow,
}
_OF_ONE: dict[str, Callable[..., torch.Tensor]] = {
    **{f"remainder by {number}": partial(torch.remainder, other=number) for number in (3.0, -0.1, float("inf"))},
    **{f"fmod by {number}": partial(torch.fmod, other=number) for number in (3.0, -0.1, float("inf"))},
    "% 1": lambda x: x % 1,
    **{f"{digits} decimals": partial(torch.round, decimals=digits) for digits in (-2, 1, 3)},
    "round": torch.round,
    "floor": torch.floor,
}


@pytest.mark.parametrize("name", [*_OF_TWO, *_OF_ONE])
def test_exact(name: str) -> None:
    if name in _OF_TWO:
        function, inputs = _OF_TWO[name], tuple(torch.tensor(list(product(_NUMBERS, _NUMBERS))).T.contiguous())
    else:
        function, inputs = _OF_ONE[name], (torch.tensor(_NUMBERS),)
    module = Function(lambda *values: function(*values) + 1)
    program = delegate.to_backend(torch.export.export(module, inputs), ["openvino"])
    assert "openvino" in {n.backend for n in program.report.nodes}
    for node in program.report.nodes:
        if node.op.startswith(("aten.fmod", "aten.remainder")):
            assert "exact remainder" in node.verdicts["openvino"].message
    assert_same(program(*inputs), module(*inputs), 1e-6, each=True)
