"""Operators with several right answers: another one than torch's is no fault, and a wrong one is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from delegate_devtools import debug
from delegate_devtools.choices import compare_of
from torch import nn

from delegate.accuracy.figures import difference
from delegate.kernels.table import KernelTable

aten = torch.ops.aten
F = nn.functional
TIES = torch.randint(0, 4, (6, 40), generator=torch.Generator().manual_seed(0)).float()
SQUARE = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
SYMMETRIC = TIES[:, :6] + TIES[:, :6].T

# Name -> function, input.
MODELS: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "sort": (lambda x: x.sort(), TIES),
    "sort, descending": (lambda x: (x + 1).sort(0, descending=True), TIES),
    "argsort": (lambda x: x.argsort().to(torch.int32) + 1, TIES),
    "topk": (lambda x: (x + 1).topk(5), TIES),
    "topk, unsorted": (lambda x: x.topk(5, sorted=False)[1], TIES),
    "what is read at indices": (lambda x: x.cumsum(0).gather(1, (x * 2).topk(5)[1]) + 1, TIES),
    "max": (lambda x: (x + 1).max(1), TIES),
    "min": (lambda x: x.min(0, keepdim=True), TIES),
    "argmax": (lambda x: (x * 2).argmax(1), TIES),
    "argmin of all": (lambda x: x.argmin(), TIES),
    "kthvalue": (lambda x: x.kthvalue(3), TIES),
    "mode": (lambda x: x.mode(), TIES),
    "median": (lambda x: x.median(1), TIES),
    "cummax": (lambda x: x.cummax(1), TIES),
    "unique": (lambda x: x.unique(sorted=False, return_inverse=True, return_counts=True), TIES),
    "max_pool2d": (lambda x: F.max_pool2d(x[None], 3, 2, return_indices=True), TIES),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x[None], (3, 5), return_indices=True), TIES),
    "eig": (torch.linalg.eig, SQUARE),
    "eig of a symmetric matrix": (torch.linalg.eig, SYMMETRIC),
    "eigh": (torch.linalg.eigh, SYMMETRIC),
    "svd": (torch.linalg.svd, TIES),
    "svd, reduced": (lambda x: torch.linalg.svd(x, full_matrices=False), TIES),
    "qr": (lambda x: torch.linalg.qr(x.T), TIES),
    "r alone": (lambda x: torch.linalg.qr(x.T, mode="r")[1], TIES),
    "empty": (lambda x: torch.empty_like(x) * 0 + x, TIES),
    "random": (lambda x: torch.bernoulli(x / 4) + x, TIES),
}


def export_model(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> torch.export.ExportedProgram:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    return torch.export.export(Model(), (x,))


@pytest.mark.parametrize(("function", "x"), MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("backends", [[], ["xnnpack"]], ids=["kernels", "xnnpack"])
def test_another_right_answer_is_no_fault(
    function: Callable[[torch.Tensor], Any], x: torch.Tensor, backends: list[str]
) -> None:
    diagnosis = debug(export_model(function, x), backends, cache=False)
    assert diagnosis.faults == (), str(diagnosis)
    assert "accumulates" not in str(diagnosis)


def test_the_answers_are_named() -> None:
    assert any("another answer than torch" in n and "sort" in n for n in debug(export_model(*MODELS["sort"]), []).notes)


def test_numbers_that_differ_by_rounding_may_have_another_order() -> None:
    """A library whose values differ a little picks another of two nearly equal elements."""
    x = torch.tensor([[1.0, 1.0 + 2**-23, 0.0]])
    ep = export_model(lambda x: (x * 3 / 3).argmax(1), x)
    assert debug(ep, ["xnnpack"], cache=False).faults == ()


# Name -> operator, what a wrong library returns in place of its right results.
WRONG: dict[str, tuple[str, Callable[..., None]]] = {
    "argmax": ("aten.argmax.default", lambda x, dim, keepdim, *, out: np.copyto(out, x.argmin(dim))),
    "max": ("aten.max.dim", lambda x, dim, keepdim, *, out: (np.copyto(out[0], x.max(dim)), out[1].fill(99))),
    "sort": ("aten.sort.default", lambda x, dim, down, *, out: (np.copyto(out[0], np.sort(x, dim)), out[1].fill(0))),
    "eigh": ("aten._linalg_eigh.default", lambda x, side, vectors, *, out: (out[0].fill(1), out[1].fill(0.5))),
    "mode": ("aten.mode.default", lambda x, dim, keepdim, *, out: (out[0].fill(7), out[1].fill(0))),
}


@pytest.mark.parametrize(("name", "kernel"), WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_is_a_fault(name: str, kernel: Callable[..., None]) -> None:
    functions = {
        "argmax": lambda x: x.argmax(1),
        "max": lambda x: x.max(1),
        "sort": lambda x: x.sort(),
        "mode": torch.mode,
        "_linalg_eigh": lambda x: torch.linalg.eigh(x[:, :6] + x[:, :6].T),
    }
    wrong = KernelTable("wrong")
    wrong.kernel(name)(kernel)
    ep = export_model(functions[name.split(".")[1]], TIES)
    (fault,) = debug(ep, [], kernels=[wrong, "portable"]).faults
    assert fault.nodes[0].operator == name


def sqnr_db(
    target: Any, args: dict[str, Any], actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> float:
    """Return the SQNR of results in decibels."""
    compare = compare_of(target, args)
    assert compare is not None
    pairs = list(compare(args, dict(enumerate(actual)), dict(enumerate(expected))))
    figures = difference([a for a, _ in pairs], [e for _, e in pairs])
    assert figures is not None
    return figures.sqnr_db


ROW = torch.tensor([2.0, 1.0, 2.0, 0.0])
U, S, V = torch.linalg.svd(SQUARE)
L, E = torch.linalg.eig(SQUARE)
Q, R = torch.linalg.qr(SQUARE)
ORDER = torch.tensor([5, 3, 1, 0, 2, 4])
TOPK, ARGMAX = (aten.topk.default, {"self": ROW, "dim": -1}), (aten.argmax.default, {"self": ROW, "dim": 0})
SVD = (aten._linalg_svd.default, {"A": SQUARE})
EIG, QR = (aten.linalg_eig.default, {"self": SQUARE}), (aten.linalg_qr.default, {"A": SQUARE})
UNSORTED = (aten.topk.default, {"self": ROW, "dim": -1, "sorted": False})
TWICE = [0, 0, 2, 3, 4, 5]


def pick(*indices: int) -> tuple[torch.Tensor, torch.Tensor]:
    return ROW[list(indices)], torch.tensor(indices)


# Name -> operator and its arguments, the results of a library, those of torch, whether the library is right.
ANSWERS: dict[str, tuple[tuple[Any, dict[str, Any]], Any, Any, bool]] = {
    "ties": (TOPK, pick(2, 0), pick(0, 2), True),
    "one twice": (TOPK, pick(0, 0), pick(0, 2), False),
    "another order": (TOPK, pick(1, 0), pick(0, 1), False),
    "any order": (UNSORTED, pick(1, 0), pick(0, 1), True),
    "outside": (ARGMAX, (torch.tensor(4),), (torch.tensor(0),), False),
    "negative": (ARGMAX, (torch.tensor(-1),), (torch.tensor(3),), False),
    "signs": (SVD, (-U, S, -V), (U, S, V), True),
    "one sign": (SVD, (-U, S, V), (U, S, V), False),
    "U alone": (SVD, (-U,), (U, S, V), True),
    "no orthogonal factor": (QR, (Q * 2, R / 2), (Q, R), False),
    "eigenvalues in another order": (EIG, (L[ORDER], E[:, ORDER]), (L, E), True),
    "eigenvectors of others": (EIG, (L, E[:, ORDER]), (L, E), False),
    "phases": (EIG, (L, E * 1j), (L, E), True),
    "an eigenvalue twice": (EIG, (L[TWICE], E[:, TWICE]), (L, E), False),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_right_and_wrong_answers(case: str) -> None:
    (target, args), actual, expected, is_right = ANSWERS[case]
    assert (sqnr_db(target, args, actual, expected) > 60) == is_right


def test_a_stable_sort_has_one_answer() -> None:
    assert compare_of(aten.sort.stable, {"self": ROW, "stable": True}) is None
    assert compare_of(aten.relu.default, {"self": ROW}) is None
