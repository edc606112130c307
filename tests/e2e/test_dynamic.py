"""Dynamic sizes, end to end: one program per module, called at several sizes, compared with eager; saved and loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim
from torch.nn import functional as F

import delegate
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_same
from tests.support.sampling import every
from tests.support.values import checked_item, counts, numbers

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


@dataclass(frozen=True)
class Case:
    """Args: the module's function, the calls (the first is the example of export), and the dynamic dimensions."""

    function: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]
    dims: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        assert len(self.calls) > 1


def mask(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


def rows(*sizes: int, width: int = 3) -> tuple[tuple[torch.Tensor], ...]:
    return tuple((numbers(size, width),) for size in sizes)


N = Dim("n", min=0, max=16)
TWO = Dim("n", min=2, max=16)
FOUR = Dim("n", min=4, max=16)
SAME = ({0: TWO}, {0: TWO})


def filtered(x: torch.Tensor, least: float) -> torch.Tensor:
    return x[x > least]


def counted(x: torch.Tensor) -> Any:
    count, doubled = while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 2), (0, x))
    return doubled, count + 1


def halves(x: torch.Tensor) -> torch.Tensor:
    half = (x.shape[0] + 1) // 2
    return torch.cat([x.new_ones(half) * 2, x.sum(1)])


SIZES = {
    "rows": Case(lambda x: F.relu(x) * 2 + 1, rows(4, 0, 1, 7, 16), ({0: N},)),
    "flattened": Case(lambda x: (x * 2).reshape(-1).sin(), rows(4, 0, 1, 16), ({0: N},)),
    "two dims": Case(
        lambda x: F.softmax(x @ x.transpose(0, 1), -1),
        ((numbers(3, 4),), (numbers(1, 2),), (numbers(8, 9),)),
        ({0: Dim("a", min=1, max=8), 1: Dim("b", min=2, max=9)},),
    ),
    "unbounded": Case(lambda x: (x + 1).cumsum(0), rows(4, 2, 40), ({0: Dim("n", min=2)},)),
    "equal dims": Case(
        lambda x, y: x @ y.transpose(0, 1), tuple((numbers(n, 3), numbers(n, 3)) for n in (4, 2, 16)), SAME
    ),
    "derived by addition": Case(
        lambda x, y: x + y[1:], tuple((numbers(n), numbers(n + 1)) for n in (3, 2, 16)), ({0: TWO}, {0: TWO + 1})
    ),
    "derived by a factor": Case(
        lambda x, y: x.reshape(-1, 2) + y[:, None],
        tuple((numbers(2 * n), numbers(n)) for n in (4, 2, 16)),
        ({0: 2 * TWO}, {0: TWO}),
    ),
    "only derived": Case(
        lambda x: x.reshape(-1, 3).sum(1), tuple((numbers(3 * n),) for n in (4, 2, 16)), ({0: 3 * TWO},)
    ),
    "auto": Case(
        lambda x, y: x @ y,
        tuple((numbers(a, b), numbers(b, c)) for a, b, c in ((3, 4, 5), (2, 6, 3))),
        ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}),
    ),
    "halves": Case(halves, rows(6, 4, 5, 16, 9), ({0: FOUR},)),
    "falls while n grows": Case(
        lambda x: (x.new_ones(20 - x.shape[0]) * 2).sin() + x.sum(), rows(5, 4, 16), ({0: FOUR},)
    ),
    "strided": Case(lambda x: x[::2].clone() * x[-1], rows(6, 4, 9), ({0: FOUR},)),
    "padded": Case(lambda x: F.pad(x, (0, 0, 1, x.shape[0])), rows(4, 2, 9), ({0: TWO},)),
    "resized": Case(
        lambda x: F.interpolate(x, scale_factor=2.0), tuple((numbers(1, 2, n, 4),) for n in (4, 2, 16)), ({2: TWO},)
    ),
    "convolved": Case(
        lambda x: F.conv1d(x, torch.ones(2, 3, 3), stride=2, padding=1), tuple((numbers(1, 3, n),) for n in (8, 4, 15)),
        ({2: Dim("t", min=4, max=15)},),
    ),
    "attention": Case(
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        tuple((numbers(1, 2, n, 4),) for n in (4, 2, 16)), ({2: TWO},),
    ),
    "number given": Case(lambda x, y: x * y, ((numbers(4), 3), (numbers(4), 5), (numbers(4), 2)), (None, Dim.DYNAMIC)),
    "number given as a size": Case(
        lambda x, y: x.new_zeros(y) + y + x.sum(), ((numbers(4), 3), (numbers(4), 50)), (None, Dim.DYNAMIC)
    ),
}  # fmt: skip

NUMBERS = {
    "quotient": Case(lambda x: (x * 2, x.shape[0] / 3, x.numel()), rows(4, 2, 7), ({0: TWO},)),
    "power": Case(lambda x: x / x.shape[0] ** 0.5, rows(4, 2, 7), ({0: TWO},)),
    "root": Case(lambda x: x / torch.sym_sqrt(x.shape[0]), rows(4, 2, 7), ({0: TWO},)),
    "integer powers": Case(lambda x: (x * 2, x.shape[0] ** 3, 2 ** x.shape[0]), rows(4, 2, 7), ({0: TWO},)),
    "rounded": Case(
        lambda x: (x * 2, round(x.shape[0] / 3), math.ceil(x.shape[0] / 3), math.floor(x.shape[0] / 3)),
        rows(4, 2, 7, 15),
        ({0: TWO},),
    ),
    "compared": Case(
        lambda x: (x * 2, x.shape[0] != 5, torch.sym_not(x.shape[0] >= 5), (x.shape[0] > 2) & (x.shape[0] <= 5)),
        rows(4, 2, 5, 6),
        ({0: TWO},),
    ),
    "extremes": Case(
        lambda x: (x * 2, torch.sym_max(x.shape[0], 5), torch.sym_min(x.shape[0], 5), abs(5 - x.shape[0]), -x.shape[0]),
        rows(4, 2, 9),
        ({0: TWO},),
    ),
    "sum": Case(lambda x: x * torch.sym_sum([x.shape[0], 1, x.shape[1]]), rows(4, 2, 9), ({0: TWO},)),
    "product of floats": Case(lambda x: x * (x.shape[0] / 7 * x.shape[0]) + 0.9 ** x.shape[0], rows(4, 2), ({0: TWO},)),
    "float as a size": Case(lambda x: x.new_ones(math.floor(x.shape[0] / 2) + 1) * x.sum(), rows(4, 2, 9), ({0: TWO},)),
}  # fmt: skip

ROWS = (numbers(4, 3), numbers(4, 3) * 0 - 1, numbers(4, 3) * 0 + 1)
LABELS = (counts(2, 0, 2, 1, 5, 5), counts(1, 1, 1, 1, 1, 1), counts(5, 4, 3, 2, 1, 0))

DATA = {
    "nonzero of a computed tensor": Case(lambda x: ((x * 2 - 0.5) > 0).nonzero() * 3 + 1, tuple((x,) for x in ROWS)),
    "mask, then its places": Case(
        lambda x: (x[x > 0], torch.where(x > 0)[0], (x > 0).nonzero()), tuple((x,) for x in ROWS)
    ),
    "places, then a mask": Case(
        lambda x: ((x > 0).nonzero(), torch.masked_select(x, x > 0), x[x > 0] * 2), tuple((x,) for x in ROWS)
    ),
    "one mask of two": Case(
        lambda x: (x[x > 0], x.neg()[x > 0] + torch.where(x > 0)[1], torch.masked_select(x, x > 0)),
        tuple((x,) for x in ROWS),
    ),
    "rows by mask, dynamic rows": Case(
        lambda x, y: (x[y] * 2, x.shape[0]),
        ((numbers(4, 3), mask(1, 0, 1, 1)), (numbers(2, 3), mask(0, 1)), (numbers(6, 3), mask(1, 1, 1, 1, 1, 1))),
        SAME,
    ),
    "two filters": Case(
        lambda x: filtered(filtered(x, 0) * 2, 0.2).sum() + x, tuple((x,) for x in ROWS)
    ),
    "unique with all": Case(
        lambda x: torch.unique(x, return_inverse=True, return_counts=True), tuple((x,) for x in LABELS)
    ),
    "unique rows": Case(lambda x: torch.unique(x.reshape(3, 2), dim=0), tuple((x,) for x in LABELS)),
    "unique runs": Case(
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), tuple((x,) for x in LABELS)
    ),
    "bincount": Case(lambda x: torch.bincount(x) * 2, tuple((x,) for x in LABELS)),
    "repeated rows": Case(
        lambda x, y: torch.repeat_interleave(x, y, dim=0) + 1,
        tuple((ROWS[0], counts(*c)) for c in ((1, 2, 0, 1), (0, 0, 0, 0), (5, 0, 0, 9))),
    ),
    "item": Case(lambda x: x * x.sum().item(), tuple((x,) for x in ROWS)),
    "item of a bool": Case(lambda x: x * (x.sum() > 0).item(), tuple((x,) for x in ROWS)),
    "items given": Case(lambda x: (x.max().item(), x.argmax().item(), (x > 0).any().item()), tuple((x,) for x in ROWS)),
    "item as a size": Case(
        lambda x: torch.arange(checked_item(x, 0, 100)) * 2, tuple((counts(n).sum(),) for n in (5, 0, 100))
    ),
    "item as an end": Case(
        lambda x, y: x[: checked_item(y, 0, 4)] + 1, tuple((ROWS[0], counts(n).sum()) for n in (2, 0, 4, 1))
    ),
    "item of a part": Case(
        lambda x: x.new_ones(checked_item(x[0], 0, 9)).cumsum(0), ((counts(2, 3),), (counts(0, 1),))
    ),
    "split by numbers": Case(
        lambda x, y: [part * 2 for part in x.split(y.tolist())],
        tuple((ROWS[0], counts(*c)) for c in ((1, 3), (4, 0), (2, 2))),
    ),
    "number of a loop": Case(counted, tuple((x,) for x in ROWS)),
    "partly static": Case(lambda x: ((x * 3).sin() + 1, x[x > 0] - x.mean(), x.exp()), tuple((x,) for x in ROWS)),
    "dynamic and data": Case(
        lambda x: torch.cat([x[x > 0], x.reshape(-1)]) / x.shape[0], rows(4, 2, 9), ({0: TWO},)
    ),
}  # fmt: skip

CASES = SIZES | NUMBERS | DATA


def exported(case: Case) -> torch.export.ExportedProgram:
    return torch.export.export(NamedFunction(case.function).eval(), case.calls[0], dynamic_shapes=case.dims)


@pytest.mark.parametrize("name", every(3, CASES))
def test_as_eager(name, tmp_path):
    case = CASES[name]
    program = delegate.to_backend(exported(case), [])
    program.save(tmp_path / "m.dlg")
    loaded = delegate.load(tmp_path / "m.dlg")
    for call in (*case.calls, case.calls[0]):
        expected = case.function(*call)
        assert_same(program(*call), expected)
        given = [a.numpy() if isinstance(a, torch.Tensor) else a for a in call]
        for got, wanted in zip(pytree.tree_leaves(loaded(*given)), pytree.tree_leaves(expected), strict=True):
            assert_same(got, wanted)


class Remembered(torch.nn.Module):
    """Numbers are read off a state, and off a view of it, which the same call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.tensor([2, 3]))

    def forward(self, x):
        before = self.last[1].item()
        torch._check(before >= 0)
        torch._check(before <= 50)
        size = x.new_ones(before)
        self.last.copy_(self.last + x.long())
        return before, size * 2, self.last[0].item(), self.last * 1


def test_numbers_read_off_a_state():
    module = Remembered().eval()
    program = delegate.to_backend(torch.export.export(module, (torch.ones(2),)), [])
    for step in (1.0, 4.0, 0.0, 7.0):
        x = torch.full((2,), step)
        assert_same(program(x), module(x))
