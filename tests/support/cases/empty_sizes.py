"""Functions that reduce a dynamic size, in calls in which that size is 0."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from delegate_testing.cases import floats
from torch import Tensor
from torch.export import Dim

import delegate
from delegate.testing import assert_same
from tests.support.functions import NamedFunction

SIZES = (0, 3, 0, 1)
WEIGHT = floats(3, 5)
CASES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "sum that keeps the size": lambda x: x.sum(0, keepdim=True) + 1,
    "sum of a product": lambda x: (x @ WEIGHT).sum(0),
    "sum of sums": lambda x: x.cumsum(0).sum(0),
    "sum between others": lambda x: torch.relu(x * 2).sum(0) * 2,
    "mean": lambda x: x.mean(0),
    "variance": lambda x: x.var(0),
    "product": lambda x: x.prod(0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "any": lambda x: (x > 0).any(0),
    "all": lambda x: (x > 0).all(0),
    "matrix product": lambda x: x.t() @ x,
    "batched product": lambda x: torch.bmm(x.t()[None], x[None]),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(torch.ones(1, 2, 3), x[None], x[None]),
    "rows beside others": lambda x: torch.cat([x, torch.ones(2, 3)]) * 2,
    "rows between zeros": lambda x: torch.nn.functional.pad(x, (0, 0, 1, 1)) * 2,
    "no result": lambda x: (torch.softmax(x @ WEIGHT, 1), x.mean(1), torch.max(x, 1)[0]),
}

# Case -> the operators that a backend runs that is right on each, apart from the variance.
ALL: Mapping[str, str] = {
    "sum": "sum",
    "sum of all": "sum",
    "sum that keeps the size": "sum add",
    "sum of a product": "matmul sum",
    "sum of sums": "cumsum sum",
    "sum between others": "mul relu sum",
    "mean": "mean",
    "variance": "",
    "product": "prod",
    "norm": "linalg_vector_norm",
    "logsumexp": "logsumexp",
    "any": "gt any",
    "all": "gt logical_not any",
    "matrix product": "permute matmul",
    "batched product": "permute unsqueeze bmm",
    "attention": "unsqueeze scaled_dot_product_attention",
    "rows beside others": "cat mul",
    "rows between zeros": "constant_pad_nd mul",
    "no result": "matmul _softmax mean max",
}


def compare(case: str, config: Mapping[str, Any], tolerance: float = 1e-5) -> str:
    """Compare a function with eager at several sizes of its dimension.

    Args:
        case: the name of the function.
        config: the configuration, with the backend.
        tolerance: relative to the largest expected value.

    Returns:
        The operators that run on the backend, in order, e.g. "mul relu".
    """
    module = NamedFunction(CASES[case])
    exported = torch.export.export(module, (floats(4, 3),), dynamic_shapes=({0: Dim("n", min=0, max=64)},))
    program = delegate.to_backend(exported, config=dict(config))
    for size in SIZES:
        x = floats(size, 3)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*degrees of freedom")  # torch's, of a variance of nothing
            expected = module(x)
        assert_same(program(x), expected, tolerance)
    there = (n.op.split(".")[1] for n in program.report.nodes if n.backend != "portable")
    return " ".join(dict.fromkeys(there))
