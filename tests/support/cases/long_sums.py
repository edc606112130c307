"""Sums of many floats in all operators that have one, compared with float64 by relative error."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

import delegate
from delegate.testing import assert_same
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
DYNAMIC: Mapping[str, Case] = {  # of x (4, rows, 7): sizes and numbers that are known at run time alone
    "pool to as many rows": lambda x: F.adaptive_avg_pool2d(x, (x.shape[1], 1)),
    "pool to as many columns as rows": lambda x: F.adaptive_avg_pool2d(x, (1, x.shape[1])),
    "global average pool": lambda x: F.adaptive_avg_pool2d(x, 1),
    "mean of rows": lambda x: x.mean(1),
    "sum": lambda x: x.sum(),
    "variance": lambda x: x.var(1),
    "2-norm": lambda x: _norm(x, 2, 1),
    "group norm": lambda x: F.group_norm(x[None], 2)[0],
    "running sum": lambda x: x.cumsum(1),
    "mean of all beside a long size": lambda x: F.pad(x, (0, 4094)).mean(),
    "variance of all beside a long size": lambda x: F.pad(x, (0, 4094)).var((1, 2), correction=0),
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


def check_dynamic(backend: str, case: Case) -> None:
    """Assert that a backend runs a case with a dynamic number of rows, and is right at several numbers."""
    torch.manual_seed(0)
    shapes = {"x": {1: torch.export.Dim("rows", min=2, max=4096)}}
    exported = torch.export.export(NamedFunction(case).eval(), (torch.rand(4, 6, 7),), dynamic_shapes=shapes)
    program = delegate.to_backend(exported, [backend])
    assert_runs(program, backend)
    for rows in (2, 6, 4096):
        x = torch.rand(4, rows, 7)
        assert_same(program(x), case(x), 5e-6)
