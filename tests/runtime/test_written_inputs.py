"""Modules that write to their inputs: the caller's own arrays and tensors hold the new values behind a call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import delegate
from delegate.errors import InputError
from delegate.program.file import serialize
from tests.support.lowering import assert_same, compiled


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("count", torch.zeros(3))

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def adds_and_returns_another(m, a, b):
    a.add_(b)
    return a * 2


def returns_what_it_wrote(m, a, b):
    return a.mul_(b), b


def returns_the_old_value(m, a, b):
    old = a.clone()
    a.copy_(b)
    return old, a.sum()


def writes_a_row(m, a, b):
    a[1].fill_(7)
    a[:, 0] += b[0, 0]
    return b + 1


def swaps(m, a, b):
    old = a.clone()
    a.copy_(b)
    b.copy_(old)
    return a - b


def writes_a_buffer_too(m, a, b):
    m.count.add_(a.sum(1))
    a.sub_(m.count[:, None])
    return m.count * 1


def by_what_the_data_says(m, a, b):
    chosen = b[b > 0]
    a.add_(chosen.sum())
    later = a[a > 1]
    a.mul_(2)
    return later * 1, chosen


FUNCTIONS = [
    by_what_the_data_says,
    adds_and_returns_another, returns_what_it_wrote, returns_the_old_value, writes_a_row, swaps, writes_a_buffer_too,
]  # fmt: skip


def given(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, 4, generator=generator).to(dtype) for _ in range(2))


# Function -> the operators that XNNPACK refuses, with the number of their nodes; it runs all others.
REFUSED = {
    by_what_the_data_says: {"aten.gt.Scalar": 2, "aten.index.Tensor": 2},
    writes_a_row: {"aten.full_like.default": 1},
}


@pytest.mark.parametrize("backends", [[], ["xnnpack"]], ids=["portable", "xnnpack"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_torch_and_numpy(function, backends):
    module, portable = Function(function), REFUSED.get(function) if backends else None
    program = compiled(copy.deepcopy(module), given(), backends=backends, portable=portable)
    loaded = delegate.load(serialize(program.program))
    theirs, ours = given(), given()
    arrays = [t.numpy().copy() for t in given()]
    for _ in range(2):
        expected, result = copy.deepcopy(module(*theirs)), program(*ours)
        assert_same(result, expected)
        assert_same(ours, theirs)
        kept = copy.deepcopy(result)
        loaded(*arrays)
        for array, tensor in zip(arrays, theirs, strict=True):
            assert_same(array, tensor)
        for tensor in ours:  # results are the caller's own
            tensor.add_(0)
        assert_same(result, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strided_arrays_and_tensors_are_written(dtype):
    module = Function(writes_a_row)
    program = compiled(copy.deepcopy(module), given(dtype))
    theirs, ours = ([t.T.contiguous().T for t in given(dtype)] for _ in range(2))
    module(*theirs)
    program(*ours)
    assert_same(ours, theirs)
    if dtype is torch.float32:
        a, b = (np.asfortranarray(t.numpy()) for t in given())
        program.loaded(a, b)
        assert_same(a, theirs[0])


def test_dynamic_sizes():
    rows = Dim("rows", min=2, max=8)
    module = Function(writes_a_row)
    program = compiled(module, given(), dynamic_shapes=(({0: rows}, {0: rows}),))
    for count in (2, 5, 3):
        theirs, ours = ([torch.ones(count, 4) * i for i in range(2)] for _ in range(2))
        module(*theirs)
        program(*ours)
        assert_same(ours, theirs)


def test_what_cannot_be_written_is_refused():
    program = compiled(Function(adds_and_returns_another), given()).loaded
    a, b = (t.numpy() for t in given())
    a.flags.writeable = False
    with pytest.raises(InputError, match="'args_0' is read-only, but the method writes to it"):
        program(a, b)
    with pytest.raises(InputError, match="'args_0' is a list, but the method writes to it"):
        program(a.tolist(), b)
    b.flags.writeable = False
    program(a.copy(), b)  # this one is only read


def _interleaved():
    both = np.ones((3, 8), np.float32)
    return both[:, ::2], both[:, 1::2]


def _beside():
    both = np.ones((6, 4), np.float32)
    return both[:3], both[3:]


def _same():
    return (np.ones((3, 4), np.float32),) * 2


def _reversed():
    a = np.ones((3, 4), np.float32)
    return a, a[::-1]


def _reaching():
    both = np.ones((5, 4), np.float32)
    return both[2:], both[:3]


def _repeated():
    a = np.lib.stride_tricks.as_strided(np.ones(12, np.float32), (3, 4), (4, 4))
    return a, np.ones((3, 4), np.float32)


@pytest.mark.parametrize("make", [_interleaved, _beside])
def test_arrays_of_one_buffer_that_have_nothing_in_common(make):
    program = compiled(Function(adds_and_returns_another), given()).loaded
    a, b = make()
    np.testing.assert_array_equal(program(a, b), np.full((3, 4), 4, np.float32))
    np.testing.assert_array_equal(a, np.full((3, 4), 2, np.float32))
    np.testing.assert_array_equal(b, np.ones((3, 4), np.float32))


@pytest.mark.parametrize(
    ("make", "what"),
    [*((make, "'args_0' and 'args_1'") for make in (_same, _reversed, _reaching)), (_repeated, "elements of input")],
)
def test_a_written_input_shares_its_memory_with_nothing(make, what):
    """In eager the other one would change too, in a run on separate copies it would not: nobody could tell."""
    program = compiled(Function(adds_and_returns_another), given()).loaded
    a, b = make()
    before = a.copy()
    with pytest.raises(InputError, match=f"{what}.* share memory, but the method writes to 'args_0'"):
        program(a, b)
    np.testing.assert_array_equal(a, before)


def test_what_is_only_read_may_share_memory():
    program = compiled(Function(lambda m, a, b: a @ b.T), given()).loaded
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(program(a, a), program(a.copy(), a.copy()))


def test_the_same_tensor_twice_is_refused_too():
    program = compiled(Function(adds_and_returns_another), given())
    a = torch.ones(3, 4)
    with pytest.raises(InputError, match="share memory"):
        program(a, a)
