"""Functions whose results cover many magnitudes, compared with torch in float64 by relative error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

F = nn.functional
Case = tuple[Callable[[Tensor], Tensor], float, float]  # the function, and the bounds of its domain
_INF = math.inf

CASES: Mapping[str, Case] = {
    "sigmoid": (torch.sigmoid, -_INF, _INF),
    "silu": (F.silu, -88, _INF),  # torch's own formula overflows further down
    "gated by a sigmoid": (lambda x: (x + 1) * x.sigmoid(), 0, _INF),
    "quick GELU": (lambda x: x * torch.sigmoid(1.702 * x), -20, _INF),
    "glu": (lambda x: F.glu(torch.stack([torch.ones_like(x), x], 1), 1), -_INF, _INF),
    "logarithm of a sigmoid": (lambda x: x.sigmoid().log(), -80, 0),
    "binary cross entropy": (lambda x: -torch.log(x.sigmoid()), -80, -1),
    "router": (lambda x: x.sigmoid() / (x.sigmoid() + (x - 0.7).sigmoid()), -80, 80),
    "logsigmoid": (F.logsigmoid, -_INF, _INF),
    "softplus": (F.softplus, -_INF, _INF),
    "softplus, beta": (lambda x: F.softplus(x, 2, 30), -_INF, _INF),
    "softplus, negative beta": (lambda x: F.softplus(x, -0.5), -_INF, _INF),
    "mish": (F.mish, -_INF, _INF),
    "tanh": (torch.tanh, -_INF, _INF),
    "erf": (torch.erf, -_INF, _INF),
    "erfc": (torch.erfc, -_INF, 9),
    "erfinv": (torch.erfinv, -1, 1),
    "elu": (F.elu, -_INF, _INF),
    "elu, alpha": (lambda x: F.elu(x, 0.3), -_INF, _INF),
    "selu": (F.selu, -_INF, 3e38),
    "celu": (F.celu, -_INF, _INF),
    "celu, alpha": (lambda x: F.celu(x, 0.5), -_INF, 1.6e38),
    "exp": (torch.exp, -_INF, 88.3),
    "expm1": (torch.expm1, -_INF, 88.3),
    "log1p": (torch.log1p, -0.99, _INF),
    "sinh": (torch.sinh, -88, 88),
    "asinh": (torch.asinh, -_INF, _INF),
    "atanh": (torch.atanh, -1, 1),
    "logaddexp": (lambda x: torch.logaddexp(torch.zeros_like(x), x), -_INF, _INF),
}
# Closer to the smallest normal number, 1.2e-38, libraries compute with subnormal numbers, or with 0 for them.
_LEAST = 2e-36
BOUND = 2e-6


def compare(name: str, backends: Sequence[str], tolerance: float = BOUND) -> frozenset[str]:
    """Compare a case with torch in float64; return the backends that ran it.

    Points at which torch itself is less exact in float32 are left out.
    """
    function, low, high = CASES[name]
    x = _points()
    x = x[(x >= low) & (x <= high)]
    program = delegate.to_backend(torch.export.export(Function(function), (x,)), backends)
    exact, eager, result = function(x.double()), function(x), program(x)
    counts = (exact.abs() > _LEAST) & (exact.abs() < torch.finfo(torch.float32).max)
    counts &= torch.isclose(eager.double(), exact, rtol=BOUND, atol=0)
    assert counts.sum() > 1000
    assert_same(result.double()[counts], exact[counts], tolerance, each=True)
    return frozenset(n.backend for n in program.report.nodes)


@cache
def _points() -> Tensor:
    """Return floats of both signs in every binade, and many between 1e-3 and 105."""
    mantissas = np.concatenate([[1.0, 1.5, 2 - 2**-23], 1 + np.random.default_rng(0).random(13)])
    each = np.ldexp(mantissas, np.arange(-126, 128)[:, None]).astype(np.float32).ravel()
    x = np.unique(np.concatenate([each, np.arange(1, 105_000, 13, dtype=np.float32) / 1000]))
    return torch.from_numpy(np.concatenate([x, -x]))
