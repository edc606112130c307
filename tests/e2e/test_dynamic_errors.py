"""Sizes and numbers that do not fit: the message names what was given, and the constraint in the user's own words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

import delegate
from delegate.errors import ExecutionError, InputError
from tests.support.functions import NamedFunction
from tests.support.lowering import assert_same, compiled
from tests.support.values import checked_item, counts, numbers

BATCH = Dim("batch", min=2, max=8)
AUTO = {0: Dim.AUTO, 1: Dim.AUTO}


def both(x, y):
    return x.sum() + y.sum()


def quotient(x):
    return x * 2, x.shape[0] // (x.shape[0] - 3)


def prefix(x, y):
    k = y.item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0])
    return x[:k] + 1


def at_most_four(x, y):
    return x[: checked_item(y, 0, 4)] + 1


def split(x, y):
    return [part * 2 for part in x.split(y.tolist())]


X = numbers(4, 3)
# function, example, dynamic dimensions, what is given, message
WRONG: dict[str, tuple[Any, tuple[Any, ...], Any, tuple[Any, ...], str]] = {
    "out of range": (
        quotient,
        (X,),
        ({0: BATCH},),
        (numbers(9, 3),),
        r"'x' has size 9 in dimension 0: batch must be 2 to 8",
    ),
    "below": (quotient, (X,), ({0: BATCH},), (numbers(1, 3),), r"size 1 in dimension 0: batch must be 2 to 8"),
    "equal": (
        both,
        (X, X.clone()),
        ({0: BATCH}, {0: BATCH}),
        (X, numbers(5, 3)),
        r"'y' has size 5 .* it must be batch, which is 4",
    ),
    "sum": (
        both,
        (X, numbers(5, 3)),
        ({0: BATCH}, {0: BATCH + 1}),
        (X, numbers(7, 3)),
        r"it must be \(1 \+ batch\), which is 5",
    ),
    "product": (
        both,
        (X, numbers(8, 3)),
        ({0: BATCH}, {0: 2 * BATCH}),
        (X, numbers(7, 3)),
        r"it must be \(2 \* batch\), which is 8",
    ),
    "does not divide": (
        quotient,
        (numbers(8, 3),),
        ({0: 2 * BATCH},),
        (numbers(7, 3),),
        r"size 7 .*: it must be 2\*batch, for example 6",
    ),
    "inner dimension": (
        torch.matmul,
        (X, numbers(3, 4)),
        (AUTO, AUTO),
        (X, numbers(7, 3)),
        r"'y' has size 7 .* which is 3",
    ),
    "a number out of range": (torch.mul, (X, 3), (None, Dim.DYNAMIC), (X, -1), r"input 'y' is -1: y must be >= 0"),
    "no integer": (torch.mul, (X, 3), (None, Dim.DYNAMIC), (X, 2.5), r"input 'y' is 2.5: pass an integer"),
    "no number": (torch.mul, (X, 3), (None, Dim.DYNAMIC), (X, True), r"input 'y' is True: pass an integer"),
    "data out of range": (
        at_most_four,
        (X, counts(1).sum()),
        None,
        (X, counts(7).sum()),
        r"'y' is the number 7: u\d+ must be 0 to 4",
    ),
    "data beyond another size": (
        prefix,
        (X, counts(1).sum()),
        ({0: BATCH}, None),
        (numbers(3, 3), counts(6).sum()),
        r"break an assumption of the export: \(u0 <= batch\) \(batch is 3, u0 is 6\)",
    ),
    "parts that do not make up the whole": (
        split,
        (X, counts(1, 3)),
        None,
        (X, counts(1, 2)),
        r"break an assumption of the export: \(\(u0 \+ u1\) == 4\) \(u0 is 1, u1 is 2\)",
    ),
    "division by zero": (
        quotient,
        (numbers(5, 3),),
        ({0: BATCH},),
        (numbers(3, 3),),
        r"cannot be computed .* modulo by zero",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("runtime", ["torch", "numpy"])
def test_wrong(name, runtime):
    function, example, dims, given, message = WRONG[name]
    exported = torch.export.export(NamedFunction(function).eval(), example, dynamic_shapes=dims)
    program = delegate.to_backend(exported, [])
    call: Any = program
    if runtime == "numpy":
        call, given = program.loaded, tuple(a.numpy() if isinstance(a, torch.Tensor) else a for a in given)
    with pytest.raises(ExecutionError, match=message) as caught:
        call(*given)
    assert "\n" not in str(caught.value)
    program(*example)  # the next run is right


def test_a_number_may_be_any_integer():
    exported = torch.export.export(NamedFunction(torch.mul).eval(), (X, 3), dynamic_shapes=(None, Dim.DYNAMIC))
    program = delegate.to_backend(exported, []).loaded
    for number in (5, np.int32(5), np.array(5), torch.tensor(5)):
        assert_same(program(X.numpy(), number), X.numpy() * 5)
    with pytest.raises(InputError, match="at most 64 bits"):
        program(X.numpy(), 2**70)


EMPTY = {
    "softmax": lambda x, y: x[y].softmax(0) + 1,
    "convolution": lambda x, y: torch.nn.functional.conv1d(x[y][:, None], torch.ones(2, 1, 3), padding=1).relu(),
    "product": lambda x, y: x[y] @ x[y].t() + 1,
    "sum": lambda x, y: x[y].sum(0) + 1,
    "whole sum": lambda x, y: (x[y] * 2).sum() + 1,
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_partition_of_nothing(name):
    """XNNPACK itself refuses some operators on sizes of 0."""
    some, none = (X, torch.tensor([True, False, True, True])), (X, torch.zeros(4, dtype=torch.bool))
    indexed = {"aten.index.Tensor": 2 if name == "product" else 1}
    program = compiled(NamedFunction(EMPTY[name]), some, backends="xnnpack", portable=indexed)
    for given in (some, none, some):
        assert_same(program(*given), EMPTY[name](*given))


def test_partitions_behind_a_size_from_data():
    """A backend takes sizes that the data tells as it takes other dynamic ones."""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, x, mask):
            return (self.linear((x * 2 + 1)[mask]).relu() + 1).detach()

    module = Module().eval()
    example = (X, torch.tensor([True, False, True, True]))
    program = delegate.to_backend(torch.export.export(module, example), "xnnpack")
    assert [p.backend for p in program.report.partitions] == ["xnnpack"] * 2
    for kept in ((1, 0, 1, 1), (0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 0)):
        mask = torch.tensor(kept, dtype=torch.bool)
        assert_same(program(X, mask), module(X, mask))
