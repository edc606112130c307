"""Slices whose bounds are numbers of the data, in every form: their sizes are known only during a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.export import Dim, export

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

X = torch.arange(24.0).reshape(6, 4)
BOUNDS = (3, 0, 6, 7, 2, -1, -2, -7)  # inside, at and beyond the ends, and from the end


def _assign(x: Tensor, n: Tensor) -> Tensor:
    x = x.clone()
    x[: n.item()] += 5
    return x


CASES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "end": lambda x, n: x[: n.item()],
    "start": lambda x, n: x[n.item() :],
    "start and end": lambda x, n: x[n.item() : n.item() + 2],
    "from the end": lambda x, n: x[-n.item() :],
    "step": lambda x, n: x[: n.item() : 2],
    "last dimension": lambda x, n: x[..., n.item() :],
    "twice": lambda x, n: x[: n.item()][:, : n.item()],
    "a size": lambda x, n: x[x.shape[0] - n.item() :],
    "written": _assign,
    "joined": lambda x, n: torch.cat([x[n.item() :], x[: n.item()]]),
    "transposed": lambda x, n: x.T[:, : n.item()],
    "integers": lambda x, n: x.long()[: n.item()],
    "bfloat16": lambda x, n: x.bfloat16()[: n.item()],
    "booleans": lambda x, n: (x > 3)[: n.item()],
    "computed after": lambda x, n: nn.functional.layer_norm(x[: n.item()], (4,)) @ x.T,
    "reduced": lambda x, n: x[: n.item()].sum(0) * 2,
    "a view after": lambda x, n: x[: n.item()].reshape(-1).unsqueeze(0),
    "a computed number": lambda x, n: x[: (x[:, 0] < n).sum().item()],
}


def compare(name: str, backends: list[str], *, dynamic: bool) -> frozenset[str]:
    """Compare a case with eager at each bound; return the operators that ran on backends."""
    function = CASES[name]
    shapes = (({0: Dim("rows", min=1, max=64)}, None),) if dynamic else None
    program = delegate.to_backend(export(Function(function), (X, torch.tensor(3)), dynamic_shapes=shapes), backends)
    for x in (X, torch.cat([X, X]) + 0.5) if dynamic else (X,):
        for bound in BOUNDS:
            assert_same(program(x, torch.tensor(bound)), function(x, torch.tensor(bound)), 1e-5)
    return frozenset(n.op for n in program.report.nodes if n.backend != "portable")
