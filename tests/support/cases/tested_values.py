"""Programs that test for NaN and infinity what an operator computes that loses them in libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import delegate
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_same

INF, NAN = math.inf, math.nan
CASES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "isfinite": lambda x: x.amax(1).isfinite(),
    "isinf of values": lambda x: torch.where(x.max(1).values.isinf(), 0.0, x.max(1).values.nan_to_num(7.0)),
    "nan_to_num": lambda x: x.amin(1).nan_to_num(1.0, 2.0, 3.0),
    "isnan": lambda x: torch.relu(x).isnan(),
    "isnan behind a sum": lambda x: (x - x.amax(1, keepdim=True)).isnan(),
    "any of isnan": lambda x: x.clamp(-1, 1).isnan().any(),
    "other than itself": lambda x: torch.relu(x) != torch.relu(x),
    "isinf of a pool": lambda x: F.max_pool1d(x[None], 2).isinf(),
    "less than a number": lambda x: x.masked_fill(x != 1.0, -INF).amax(1) > -3e38,
    "filled in": lambda x: x.nan_to_num().masked_fill(x < 1.0, -INF).amax(1),
    "filled in by where": lambda x: torch.where(x == 1.0, x, torch.full_like(x, -INF)).max(1).values,
    "softmax": lambda x: x.softmax(1).nan_to_num(0.5),
}
INPUTS = [
    torch.full((2, 4), -INF),
    torch.tensor([[NAN, 1.0, 2.0, -1.0], [1.0, 2.0, 3.0, NAN]]),
    torch.tensor([[INF, 1.0, -INF, 0.0], [-INF, -1.0, -2.0, 1.0]]),
]


def differences(backend: str) -> set[str]:
    """Return the cases in which results differ from eager's; the backend runs some operators of each case."""
    found = set()
    for name, case in CASES.items():
        program: Any = delegate.to_backend(
            torch.export.export(NamedFunction(case).eval(), (torch.rand(2, 4),)), backend
        )
        assert any(node.backend == backend for node in program.report.nodes), name
        for x in INPUTS:
            try:
                assert_same(program(x), case(x))
            except AssertionError:
                found.add(name)
    return found
