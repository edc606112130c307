"""Tensors without dimensions: torch lets operators work along dimension 0 of them, and so do programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import delegate
from tests.support.lowering import assert_runs, assert_same
from tests.support.sampling import every

T = torch.Tensor
ZERO, ZEROS = torch.tensor(0), torch.tensor([0])

CASES: dict[str, Callable[[T], object]] = {
    "amax": lambda x: x.amax(-1, keepdim=True),
    "argmax": lambda x: x.argmax(0),
    "cumprod": lambda x: x.cumprod(0),
    "cumsum": lambda x: x.cumsum(0),
    "flip": lambda x: x.flip(0),
    "gather": lambda x: x.gather(0, ZERO),
    "index_fill": lambda x: x.index_fill(0, ZEROS, 3.0),
    "index_select": lambda x: torch.index_select(x, 0, ZEROS),
    "logsumexp": lambda x: x.logsumexp(0),
    "max": lambda x: x.max(0),
    "mean": lambda x: x.mean(-1),
    "median": lambda x: x.median(0),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 0),
    "normalize": lambda x: F.normalize(x, dim=0),
    "permute": lambda x: x.permute(()),
    "prelu": lambda x: F.prelu(-x, torch.full((1,), 0.2)),
    "prod": lambda x: x.prod(0),
    "roll": lambda x: x.roll(1),
    "scatter": lambda x: x.scatter(0, ZERO, 2.0),
    "softmax": lambda x: x.softmax(-1) + x.log_softmax(0),
    "sort": lambda x: x.sort(0),
    "squeeze": lambda x: x.squeeze(0),
    "sum": lambda x: x.sum(0) + x.sum(),
    "topk": lambda x: x.topk(1, 0),
    "transpose": lambda x: x.transpose(0, -1),
    "var": lambda x: x.var(0, correction=0),
}


# The operators, each of one node, that XNNPACK refuses.
REFUSED = {
    **{n: (f"aten.{n}.default",) for n in ("argmax", "cumprod", "cumsum", "flip", "gather", "index_select", "prelu")},
    **{n: (f"aten.{n}.default",) for n in ("sort", "topk")},
    **{n: (f"aten.{n}.dim",) for n in ("max", "median")},
    "index_fill": ("aten.index_put.default", "aten.squeeze.dims"),
    "prod": ("aten.prod.dim_int",),
    "scatter": ("aten.scatter.value",),
    "softmax": ("aten._softmax.default", "aten._log_softmax.default"),
}


class Of(torch.nn.Module):
    def __init__(self, function: Callable[[T], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: T) -> object:
        return self.function(x * 1.5)


@pytest.mark.parametrize("name", every(3, CASES))
def test_operators_on_no_dimensions(name: str) -> None:
    module, x = Of(CASES[name]), torch.tensor(0.7)
    exported = torch.export.export(module, (x,))
    for backends in ("xnnpack", []):
        program = delegate.to_backend(exported, backends)
        if backends:
            assert_runs(program, "xnnpack", dict.fromkeys(REFUSED.get(name, ()), 1))
        assert_same(program(x), module(x))
