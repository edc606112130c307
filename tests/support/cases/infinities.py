"""Maxima and minima of nothing but an infinity, for which libraries may give their largest number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from delegate.testing import assert_same
from tests.support.cases.casts import lowered

INF = float("inf")
X = torch.tensor(
    [-INF, -INF, -INF, -INF, 1.0, -INF, 2.0, -INF, -INF, -INF, -3.0, -INF, -INF, -INF, -INF, -INF]
).reshape(4, 4)
CASES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: (-x).amin(1),
    "max": lambda x: x.max(1).values,
    "max of all": lambda x: x[:1].max(),
    "maximum": lambda x: torch.maximum(x, x.flip(1)),
    "topk": lambda x: x.topk(2, 1).values,
    "norm": lambda x: torch.linalg.vector_norm(x, -INF, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "max pool": lambda x: F.max_pool2d(x[None, None], 2),
    "padded max pool": lambda x: F.max_pool2d(x[None, None], 3, 1, 1),
    "max pool in one dimension": lambda x: F.max_pool1d(x[None], 2),
    "max pool in three dimensions": lambda x: F.max_pool3d(x[None, None, None], (1, 2, 2)),
    "adaptive max pool": lambda x: F.adaptive_max_pool2d(x[None, None], 2),
    "global max pool": lambda x: F.adaptive_max_pool2d(x[None, None, :1], 1),
}


def differences(backend: str, nan: str) -> set[str]:
    """Return the cases in which a backend gives a number for an infinity.

    Raises:
        AssertionError: if there are any and no partition has the note of its option `nan`.
    """
    together = lambda x: tuple(case(x) for case in CASES.values())  # noqa: E731
    program = lowered(together, X, backend, {"nan": nan})
    found = set()
    for name, actual, expected in zip(CASES, program(X), together(X), strict=True):
        try:
            assert_same(actual, expected, 5e-3)
        except AssertionError:
            found.add(name)
    notes = [note for partition in program.report.partitions for note in partition.notes]
    assert not found or any(note.startswith("nan: fast, may become a number in ") for note in notes)
    return found
