"""Assertions of the model on its data: checked as torch's exported program checks them, in every placement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import delegate
from delegate.errors import InputError
from delegate.testing import assert_same
from tests.support.availability import require
from tests.support.functions import Function

X = torch.linspace(-1, 2, 4)
CLOSED = Dim("size", min=2, max=64)


def _even(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check(k % 2 == 0)
    return (x * k).relu()


def _in_range(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check(k >= 2)
    torch._check(k < 9)
    return (x * k).relu()


def _ordered(x: Tensor, n: Tensor) -> Tensor:
    low, high = n.tolist()
    torch._check(low <= high)
    return torch.clamp(x.relu(), low, high)


def _arithmetic(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check((k // 2) * 3 + 1 < x.shape[0] * 4)
    torch._check(abs(k) ** 2 > 3)
    torch._check(torch.sym_max(k, 3) - 1 < 40)
    torch._check(torch.sym_not(k == 5))
    return (x * k).relu()


def _as_size(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0])
    torch._check(k % 2 == 0)
    return x[:k].relu()


def _float(x: Tensor, n: Tensor) -> Tensor:
    mean = n.mean().item()
    torch._check(mean * 2 + 1 < 7.5)
    return (x + mean).relu()


def _truth(x: Tensor, n: Tensor) -> Tensor:
    torch._check((n > 0).all().item())
    return (x + n.sum()).relu()


def _tensor(x: Tensor, n: Tensor) -> Tensor:
    torch._assert_async((n > 0).all(), "all must be positive")
    return (x + n.sum()).relu()


def _tensor_alone(x: Tensor, n: Tensor) -> Tensor:
    torch._assert_async(n.sum())
    return (x + n.sum()).relu()


def _classes(x: Tensor, n: Tensor) -> Tensor:
    return nn.functional.one_hot(n, 4) * x.relu()


def _fixed(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check(k == 4)
    return (x * k).relu()


def _as_long(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    torch._check(k == x.shape[0])
    return (x * k + torch.ones(k)).relu()


def _count(x: Tensor, n: Tensor) -> Tensor:
    found = torch.nonzero(n)
    torch._check(found.shape[0] % 2 == 0)
    return x.relu().sum() + found


def _in_a_branch(x: Tensor, n: Tensor) -> Tensor:
    def checked(x: Tensor, n: Tensor) -> Tensor:
        k = n.item()
        torch._check(k < 5)
        return x * k

    return torch.cond(x.sum() > 0, checked, lambda x, n: x * n, (x.relu(), n))


def _in_a_loop(x: Tensor, n: Tensor) -> Tensor:
    def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        torch._assert_async(i < 3, "too many steps")
        return i + 1, x * 2

    return torch._higher_order_ops.while_loop(lambda i, x: i < n, body, (torch.zeros_like(n), x.relu()))[1]


@dataclass(frozen=True)
class Case:
    """A model of x and n, values of n that satisfy its assertions and that do not, and the words of its error."""

    compute: Callable[[Tensor, Tensor], Tensor]
    good: tuple[Any, ...]
    bad: tuple[Any, ...]
    words: str = "an assertion of the model fails"

    def __str__(self) -> str:
        return self.compute.__name__.strip("_").replace("_", " ")


CASES = [
    Case(_even, (4, 0, -2), (3, -1)),
    Case(_in_range, (2, 8), (1, 9, -4)),
    Case(_ordered, ([1, 3], [2, 2]), ([3, 1],)),
    Case(_arithmetic, (4, 2, -3, 9), (1, 5, -1, 80)),
    Case(_as_size, (2, 4, 0), (3, 1), "u0 % 2"),
    Case(_float, ([1.0, 2.0], [-9.0, 3.0]), ([3.25, 3.25], [9.0, 9.0], [float("nan"), 0.0])),
    Case(_truth, ([1, 2],), ([1, 0], [-1, 2])),
    Case(_tensor, ([1, 2],), ([1, 0], [-1, 2]), r"all must be positive \(method forward, at "),
    Case(_tensor_alone, ([1.0, 2.0], [0.5, 0.0], [float("nan"), 0.0]), ([0.0, 0.0],)),
    Case(_classes, ([0, 1, 3, 2],), ([0, 1, 7, 2], [0, -1, 3, 2]), "Class values must be|out of range"),
    Case(_fixed, (4,), (3, 5)),
    Case(_as_long, (4,), (3, 5)),
    Case(_count, ([1, 0, 2],), ([1, 0, 0], [1, 2, 3]), "% 2"),
    Case(_in_a_branch, (4, -4), (5, 80)),
    Case(_in_a_loop, (0, 3), (4, 9), "too many steps"),
]
PLACEMENTS = {"portable": [], "xnnpack": ["xnnpack"], "preferred": ["xnnpack", "webgpu"]}


def _n(value: Any) -> Tensor:
    return torch.tensor(value)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backends", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_assertion(case: Case, backends: list[str], dynamic: bool, tmp_path: Path) -> None:
    for backend in backends:
        require(backend)
    module = Function(case.compute)
    shapes = (({0: CLOSED}, None),) if dynamic and case.compute is not _classes else None
    exported = export(module, (X, _n(case.good[0])), dynamic_shapes=shapes)
    program = delegate.to_backend(exported, backends)
    assert not backends or any(node.backend in backends for node in program.report.nodes)
    program.save(tmp_path / "model.dlg")
    reference = exported.module()
    for run in (program, delegate.load(tmp_path / "model.dlg")):
        for good in case.good:
            assert_same(run(X, _n(good)), reference(X, _n(good)), 1e-6)
        for bad in case.bad:
            with pytest.raises(RuntimeError):
                reference(X, _n(bad))
            with pytest.raises(delegate.DelegateError, match=case.words):
                run(X, _n(bad))
        assert_same(run(X, _n(case.good[0])), reference(X, _n(case.good[0])), 1e-6)


def test_a_failed_assertion_is_the_callers_fault() -> None:
    program = delegate.to_backend(export(Function(_even), (X, _n(4))), [])
    with pytest.raises(InputError, match=r"Eq\(PythonMod\(u0, 2\), 0\).*method forward, at .*pass inputs that"):
        program(X, _n(3))
