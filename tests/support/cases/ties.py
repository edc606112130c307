"""Operators that return the position of one of equal elements, for which torch defines which one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, export

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

F = nn.functional
ROWS = torch.arange(4 * 67).reshape(4, 67).mul(7).remainder(5).float() - 1
IMAGE = torch.arange(2 * 2 * 8 * 8).reshape(2, 2, 8, 8).mul(7).remainder(3).float()

CASES: Mapping[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "max": (lambda x: x.max(1), ROWS),
    "min": (lambda x: x.min(1), ROWS),
    "max of the first dimension": (lambda x: x.max(0, keepdim=True), ROWS),
    "max of half precision": (lambda x: x.half().max(1), ROWS),
    "max after an operator": (lambda x: x.relu().max(-1).indices, ROWS),
    "argmax": (lambda x: x.argmax(1), ROWS),
    "argmin": (lambda x: x.argmin(0, keepdim=True), ROWS),
    "argmax of all": (lambda x: x.argmax(), ROWS),
    "stable sort": (lambda x: torch.sort(x, dim=1, stable=True), ROWS),
    "stable descending sort": (lambda x: torch.sort(x, dim=1, stable=True, descending=True), ROWS),
    "stable argsort": (lambda x: torch.argsort(x, dim=0, stable=True), ROWS),
    "cummax": (lambda x: x.cummax(1), ROWS),
    "cummin": (lambda x: x.cummin(1), ROWS),
    "pooling": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), IMAGE),
    "adaptive pooling": (lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), IMAGE),
    "unique": (lambda x: torch.unique(x, return_inverse=True, return_counts=True), ROWS),
    "searchsorted": (lambda x: torch.searchsorted(x.sort(1).values, x[:, :4].contiguous()), ROWS),
    "searchsorted from the right": (lambda x: torch.searchsorted(x.sort(1).values, x[:, :4].clone(), right=True), ROWS),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0, 1.0, 2.0])), ROWS),
}


def compare(name: str, backends: list[str], *, dynamic: bool) -> frozenset[str]:
    """Compare a case with eager; return the operators that ran on backends."""
    function, x = CASES[name]
    shapes = (({0: Dim("first", min=2, max=64)},),) if dynamic else None
    program = delegate.to_backend(export(Function(function), (x,), dynamic_shapes=shapes), backends)
    for value in (x, torch.cat([x, x.flip(-1)])) if dynamic else (x,):
        assert_same(program(value), function(value), 0)
    return frozenset(n.op for n in program.report.nodes if n.backend != "portable")
