"""Operators with effects besides their results, beside and inside each kind of control flow and in programs without.

Checks of factorizations raise as in eager, custom operators
run once for each call, also if nothing uses their results, and what only has an effect is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import print as traced_print
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch._library.effects import EffectType
from torch.library import custom_op

import delegate
from delegate import KernelTable
from delegate.errors import ExecutionError, ExportError
from tests.support.functions import Function
from tests.support.lowering import answers, assert_same, compiled

Tensors = Callable[[torch.Tensor], Any]

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own


@custom_op("delegate_test::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@counted.register_fake
def _(x):
    return torch.empty_like(x)


@custom_op("delegate_test::counted_twice", mutates_args=())
def counted_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2, x + 1


@counted_twice.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


counted.register_effect(EffectType.ORDERED)
counted_twice.register_effect(EffectType.ORDERED)

KERNELS = KernelTable("delegate-test-effects")
CALLS: list[str] = []


@KERNELS.kernel("delegate_test.counted.default")
def count(x, *, out):
    CALLS.append("counted")
    out[...] = x * 2


@KERNELS.kernel("delegate_test.counted_twice.default")
def count_twice(x, *, out):
    CALLS.append("counted_twice")
    out[0][...], out[1][...] = x * 2, x + 1


FACTORIZATIONS = {
    "inv": lambda x: torch.linalg.inv(x).contiguous(),
    "inverse": lambda x: torch.inverse(x).contiguous(),
    "solve": lambda x: torch.linalg.solve(x, x + 1).contiguous(),
    "cholesky": lambda x: torch.linalg.cholesky(x).contiguous(),
    "lu_factor": lambda x: torch.linalg.lu_factor(x).LU.contiguous(),
    "matrix_power": lambda x: torch.linalg.matrix_power(x, -2).contiguous(),
    "tensorinv": lambda x: torch.linalg.tensorinv(x, ind=1).contiguous(),
    "unused": lambda x: (torch.linalg.inv(x), x + 1)[1],
}
CUSTOM = {"one result": counted, "two results": lambda x: counted_twice(x)[1], "unused": lambda x: (counted(x), x)[1]}


def alone(operation: Tensors, x: torch.Tensor) -> Any:
    return operation(x) + 1


def beside_cond(operation: Tensors, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (operation(x),))


def in_cond(operation: Tensors, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: operation(a) + 1, lambda a: a - 1, (x,))


def in_loop(operation: Tensors, x: torch.Tensor) -> Any:
    step = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, operation(a) + 1), (step, x + 0))[1]


def in_scan(operation: Tensors, x: torch.Tensor) -> Any:
    return scan(lambda c, a: (c + operation(a), a + c), torch.zeros_like(x), torch.stack([x, x + x.mT]))


def in_map(operation: Tensors, x: torch.Tensor) -> Any:
    return map_over(lambda a: operation(a) + 1, torch.stack([x, x + x.mT]))


def nested(operation: Tensors, x: torch.Tensor) -> Any:
    def inner(a: torch.Tensor) -> Any:
        return torch.cond(a.max() > 0, lambda b: operation(b) + 1, lambda b: b - 1, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: a - 1, (x,)) + operation(x)


PLACES = [alone, beside_cond, in_cond, in_loop, in_scan, in_map, nested]
# torch's export drops what nothing uses from bodies of control flow.
CASES = [(beside_cond, name) for name in FACTORIZATIONS] + [(p, n) for p in PLACES for n in ("solve", "cholesky")]
CUSTOM_CASES = [(beside_cond, name) for name in CUSTOM] + [(p, "two results") for p in PLACES if p is not beside_cond]
CASES += [(alone, "unused"), (nested, "unused")]
REGULAR = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
SINGULAR = torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]])


def placed(place: Callable[..., Any], operation: Tensors) -> Function:
    return Function(lambda x: place(operation, x))


@pytest.mark.parametrize(("place", "name"), dict.fromkeys(CASES), ids=lambda value: getattr(value, "__name__", value))
def test_factorizations_are_those_of_eager_and_fail_with_it(place, name):
    module = placed(place, FACTORIZATIONS[name])
    program = compiled(module, (REGULAR,))
    assert_same(program(REGULAR), module(REGULAR), 1e-4)
    with pytest.raises(RuntimeError):  # LinAlgError, except by lu_factor
        module(SINGULAR)
    with pytest.raises(ExecutionError, match="LinAlgError"):
        program(SINGULAR)


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec")  # torch's own
def test_programs_that_the_caller_decomposed_are_refused():
    exported = torch.export.export(placed(alone, FACTORIZATIONS["inv"]), (REGULAR,)).run_decompositions()
    with pytest.raises(ExportError, match=r"a token of an effect as an input.*: pass .* without run_decompositions"):
        delegate.to_backend(exported, ())


def test_backends_run_what_is_beside():
    module = placed(beside_cond, FACTORIZATIONS["solve"])
    portable = {"aten._linalg_solve_ex.default": 1, "aten.gt.Scalar": 1, "cond": 1}
    program = compiled(module, (REGULAR,), backends="xnnpack", portable=portable)
    assert answers(program, "xnnpack")["runs"] > 0
    assert_same(program(REGULAR), module(REGULAR), 1e-4)


@pytest.mark.parametrize(("place", "name"), CUSTOM_CASES, ids=lambda value: getattr(value, "__name__", value))
def test_custom_operators_run_whenever_eager_calls_them(place, name, tmp_path):
    module = placed(place, CUSTOM[name])
    program = compiled(module, (REGULAR,), kernels=[KERNELS])
    expected = {alone: 1, beside_cond: 1, in_cond: 1, in_loop: 2, in_scan: 2, in_map: 2, nested: 2}[place]
    program.save(tmp_path / "program.dlg")
    for runs in (program, delegate.load(tmp_path / "program.dlg", kernels=[KERNELS])):
        CALLS.clear()
        result = runs(REGULAR)
        assert len(CALLS) == expected
        assert_same(result, module(REGULAR))


def prints(x: torch.Tensor) -> torch.Tensor:
    torch.ops.aten._print("a value")
    return x * 2


def prints_values(x: torch.Tensor) -> torch.Tensor:
    traced_print("a value: {}", x)
    return x * 2


@pytest.mark.parametrize("place", [alone, beside_cond, in_cond, in_map], ids=lambda place: place.__name__)
def test_prints_are_refused_by_name(place):
    exported = torch.export.export(placed(place, prints), (REGULAR,))
    with pytest.raises(
        ExportError, match=r"aten\._print\.default has side effects .*functions\.py:\d+, in forward.*: remove"
    ):
        delegate.to_backend(exported, ())


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec")  # torch's own
@pytest.mark.parametrize("place", [alone, beside_cond], ids=lambda place: place.__name__)
def test_prints_of_values_are_refused_by_name(place):
    exported = torch.export.export(placed(place, prints_values), (REGULAR,))
    with pytest.raises(ExportError, match=r"the operator print has side effects .*functions\.py:\d+, in forward"):
        delegate.to_backend(exported, ())
