"""Sums of many floats in all operators that have one, compared with float64 by relative error."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

import delegate
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_runs, relative_error

Case = Callable[[Tensor], Tensor]
_norm = torch.linalg.vector_norm
LINEAR: Mapping[str, Case] = {  # compared by the sum of absolute values
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(-1, keepdim=True),
    "sum of columns": lambda x: x.sum(1),
    "mean": lambda x: x.mean(),
    "mean of rows": lambda x: x.mean(-1),
    "mean of columns": lambda x: x.mean(1, keepdim=True),
    "mean of two dimensions": lambda x: x.mean((1, 2)),
    "global average pool": lambda x: F.adaptive_avg_pool2d(x[None], 1),
}
SCANS: Mapping[str, Case] = {
    "running sum of rows": lambda x: x.cumsum(-1),
    "running sum of columns": lambda x: x.cumsum(1),
}
OTHERS: Mapping[str, Case] = {
    "1-norm": lambda x: _norm(x, 1, 1),
    "2-norm": lambda x: _norm(x, 2, -1),
    "2-norm of columns": lambda x: _norm(x, 2, 1, keepdim=True),
    "variance of columns": lambda x: x.var(1),
    "deviation": lambda x: x.std(1, correction=0, keepdim=True),
    "variance and mean": lambda x: torch.stack(torch.var_mean(x, 1)),
}
NORMALIZATIONS: Mapping[str, Case] = {
    "layer norm": lambda x: F.layer_norm(x, x.shape[-2:]),
    "group norm": lambda x: F.group_norm(x, 1),
    "instance norm": F.instance_norm,
}
SHAPES = [(2, 4101, 3), (1, 3, 65541), (1, 1 << 16, 2)]
VALUES: Mapping[str, Callable[[tuple[int, ...]], Tensor]] = {
    "ones": torch.ones,
    "uniform": torch.rand,
    "offset": lambda shape: torch.randn(shape) + 4096,
}


def errors(backend: str, cases: Mapping[str, Case], shape: tuple[int, ...]) -> dict[str, float]:
    """Return the error of each case that is more than four times eager's, and more than 1e-6 of the result.

    Deviations from a mean of 4096 have errors up to half a digit of that number, in eager as well.

    Raises:
        AssertionError: if the backend does not run all of a case.
    """
    found = {}
    for name, case in cases.items():
        torch.manual_seed(0)
        exported = torch.export.export(NamedFunction(case).eval(), (torch.ones(shape),))
        program = delegate.to_backend(exported, backend or [])
        if backend:
            assert_runs(program, backend)
        for kind, make in VALUES.items():
            x = make(shape)
            expected = case(x.double())
            scale = (case(x.double().abs()) if name in LINEAR else expected).abs().max().item() or 1.0
            error, eager = (relative_error(y.double(), expected, at_least=scale) for y in (program(x), case(x)))
            if error > max(4 * eager, 3e-4 if kind == "offset" and name in NORMALIZATIONS else 1e-6):
                found[f"{name} of {kind}"] = error
    return found
