"""Programs on portable kernels give what eager gives: structures, views, aliases, states, shapes, copies."""

from __future__ import annotations

import collections
import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import delegate
from delegate.errors import DelegateError, InputError
from delegate.program.file import serialize
from tests.support.functions import Function
from tests.support.lowering import assert_same, compiled

Pair = collections.namedtuple("Pair", "first second")


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _result_and_views(a):
    result = a * 2
    return result, result[0], result.view(-1)


def _read_again(a):
    result = a.exp()
    return result, result + 1


def _write_row(a: torch.Tensor) -> torch.Tensor:
    a[1].fill_(7)
    return a


FUNCTIONS = {
    "returns its input": (lambda a: a, (x(3),)),
    "returns its input twice": (lambda a: (a, a), (x(3),)),
    "returns a view of its input": (lambda a: a.transpose(0, 1)[1:], (x(3, 4),)),
    "view of an input into a kernel": (lambda a: a.permute(1, 0) @ a, (x(3, 4),)),
    "view of a view of an input": (lambda a: a.view(2, 6).t().reshape(3, 4) + a, (x(3, 4),)),
    "view that must be copied": (lambda a: (a.t().reshape(-1), a.permute(1, 0).flatten() * 2), (x(3, 4),)),
    "result and view of it": (_result_and_views, (x(3, 4),)),
    "result is read again": (_read_again, (x(3, 4),)),
    "split results": (lambda a: torch.split(a * 2, 2), (x(5, 2),)),
    "unbound input": (lambda a: a.unbind(0), (x(3, 2),)),
    "several results of one kernel": (lambda a: torch.topk(a, 2), (x(7),)),
    "one of several results": (lambda a: torch.max(a, 1)[0], (x(3, 7),)),
    "lists of tensors": (lambda a, b: torch.cat([a, b.view(2, 3), a[:1]]), (x(2, 3), x(6))),
    "no-dimensional": (lambda a: a.sum() * a.max(), (x(3, 3),)),
    "empty": (lambda a: (a[:0], torch.cat([a[:0], a])), (x(3, 2),)),
    "constant result": (lambda a: (torch.arange(3), a + torch.ones(3)), (x(3),)),
    "numbers and None": (lambda a: (a + 1, 3, None, "text", 2.5, True), (x(3),)),
    "nested": (lambda a: {"x": [a, (a + 1,)], "y": {"z": a * 2}}, (x(3),)),
    "namedtuple": (lambda a: Pair(a * 2, [a]), (x(3),)),
    "integers": (lambda a: (a // 2, a % 3, a.float() / 2), (torch.arange(-5, 5),)),
    "number of data rounded down": (lambda a, b: b * (a.max().item() // 2), (torch.tensor([-7, -5]), x(3))),
    "bool": (lambda a: (a > 0, torch.where(a > 0, a, -a)), (x(9),)),
    "float64": (lambda a: a.double().cumsum(0), (x(9),)),
    "bfloat16": (lambda a: (a.bfloat16() * 3).relu(), (x(9),)),
    "float16 in and out": (lambda a: a * 2, (x(9).half(),)),
    "long chain": (lambda a: (((((a + 1) * 2).exp() - 1).tanh() + a).sigmoid() * a).sum(0), (x(4, 5),)),
    "unused input": (lambda a, b: a + 1, (x(2), x(3))),
    "in-place": (lambda a: a.clone().add_(1).mul_(2), (x(2),)),
    "write into a view": (lambda a: _write_row(a.clone()), (x(3, 4),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_as_eager(name):
    function, args = FUNCTIONS[name]
    program, before = compiled(Function(function), args), copy.deepcopy(args)
    loaded = delegate.load(serialize(program.program))
    expected = Function(function)(*args)
    for _ in range(2):  # the second run finds the memory as the first left it
        assert_same(program(*args), expected)
    results = loaded.method("forward").run([a.numpy() for a in args])
    for got, wanted in zip(results, torch.utils._pytree.tree_leaves(expected), strict=True):
        assert_same(got, wanted)
    assert all(map(torch.equal, args, before))


def test_results_of_two_calls_do_not_share_memory():
    program = compiled(Function(lambda a: (a * 2, (a + 1).t())), (x(3, 4),))
    first = program(torch.zeros(3, 4))
    kept = [t.clone() for t in first]
    program(torch.ones(3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def test_strided_inputs_are_taken():
    program = compiled(Function(lambda a: a * 2), (x(3, 4),)).loaded
    given = x(4, 3).numpy().T
    np.testing.assert_array_equal(program(given), given * 2)
    np.testing.assert_array_equal(program(given[::-1]), given[::-1] * 2)


class Counter(nn.Module):
    """A module that keeps state: counts its calls, and gives the old and the new sum."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, a: torch.Tensor) -> Any:
        before = self.total.clone()
        self.total.add_(a)
        return before, self.total * 1, self.total.view(3, 1)


MODULE = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Unflatten(1, (2, 4)), nn.Flatten(0, 1), nn.LayerNorm(4))
DYNAMIC = compiled(MODULE, (x(4, 6),), dynamic_shapes=({0: Dim("batch", min=1, max=16)},))


def test_more_shapes_than_are_kept():
    for batch in [*range(1, 15), *range(1, 15)]:
        assert_same(DYNAMIC(x(batch, 6)), MODULE(x(batch, 6)))


def test_a_size_with_an_offset():
    half, function = Dim("half", min=1, max=8), Function(lambda a: a[1:].reshape(-1, 2).sum(1))
    program = compiled(function, (x(9),), dynamic_shapes=(({0: 2 * half + 1},),))
    for size in (9, 5, 17):
        assert_same(program(x(size)), function(x(size)))


def test_derived_sizes():
    half = Dim("half", min=1, max=8)
    program = compiled(
        Function(lambda a, b: (a.reshape(-1, 2) + b[:, None], a.shape[0])),
        (x(8), x(4)),
        dynamic_shapes=(({0: 2 * half}, {0: half}),),
    )
    out, size = program(x(6), x(3))
    assert size == 6
    assert torch.equal(out, x(6).reshape(-1, 2) + x(3)[:, None])
    with pytest.raises(InputError, match="dimension 0"):
        program(x(6), x(4))


WRONG = {
    "too large": ((x(17, 6),), "batch|1 to 16"),
    "wrong fixed size": ((x(4, 5),), r"'input' has the shape \[4, 5\]"),
    "wrong rank": ((x(6),), r"shape \[6\]"),
    "wrong dtype": ((x(4, 6).double(),), r"float64.*takes float32: convert it to float32"),
    "missing": ((), "other arguments|missing"),
    "one too many": ((x(4, 6), x(1)), "other arguments|positional"),
    "not a tensor": (("text",), "is a str"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("loaded", [False, True], ids=["torch", "numpy"])
def test_wrong_inputs(name, loaded):
    args, message = WRONG[name]
    program = DYNAMIC.loaded if loaded else DYNAMIC
    given = [a.numpy() if loaded and isinstance(a, torch.Tensor) else a for a in args]
    with pytest.raises(InputError, match=message) as caught:
        program(*given)
    assert "\n" not in str(caught.value)
    assert_same(DYNAMIC(x(2, 6)), MODULE(x(2, 6)))  # the next run is right


def test_keyword_arguments():
    class Module(nn.Module):
        def forward(self, a, *, scale, shift=None):
            return a * scale + (0 if shift is None else shift["by"])

    args, kwargs = (x(3),), {"scale": x(3), "shift": {"by": x(3)}}
    program = compiled(Module(), args, kwargs)
    assert_same(program(*args, **kwargs), Module()(*args, **kwargs))
    assert_same(program(*args, shift=kwargs["shift"], scale=kwargs["scale"]), Module()(*args, **kwargs))
    loaded = program.loaded
    arrays = {"scale": kwargs["scale"].numpy(), "shift": {"by": kwargs["shift"]["by"].numpy()}}
    assert_same(loaded(a=x(3).numpy(), **arrays), Module()(*args, **kwargs))
    with pytest.raises(InputError, match="missing shift"):
        loaded(x(3).numpy(), scale=arrays["scale"])
    with pytest.raises(InputError, match="unknown shit"):
        loaded(x(3).numpy(), scale=arrays["scale"], shit=1, shift=arrays["shift"])


def test_fixed_numbers_are_checked():
    class Module(nn.Module):
        def forward(self, a, times):
            return a * times

    program = compiled(Module(), (x(3), 2))
    assert_same(program(x(3), 2), x(3) * 2)
    with pytest.raises(InputError, match=r"'times' is 3.*fixed it to 2"):
        program(x(3), 3)


def test_no_kernel_names_node_operator_and_dtype():
    @torch.library.custom_op("delegate_tests::twice", mutates_args=())
    def twice(a: torch.Tensor) -> torch.Tensor:
        return a * 2

    class Twice(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return twice(a)

    twice.register_fake(torch.empty_like)
    with pytest.raises(DelegateError, match=r"delegate_tests.twice.default for float32 \(node twice.*test_run.py"):
        compiled(Twice(), (x(3),))


def test_several_methods_share_constants_and_state():
    class Store(Counter):
        def read(self):
            return self.total * 1

    class Reader(nn.Module):
        def __init__(self, store):
            super().__init__()
            self.store = store
            self.register_buffer("total", store.total)

        def forward(self, a):
            return self.total + a

    store = Store()
    methods = {
        "add": torch.export.export(store, (x(3),)),
        "read": torch.export.export(Reader(store), (x(3),)),
    }
    program = delegate.to_backend(methods, [])
    assert program.methods == ("add", "read")
    with pytest.raises(DelegateError, match=r"no method 'forward'.*known: add, read"):
        program(x(3))
    assert_same(program.method("read")(x(3)), x(3))
