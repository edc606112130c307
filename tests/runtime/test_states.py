"""Modules that keep state give what eager gives over several calls, whatever they do with their buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import ExportError
from delegate.kernels.portable import TABLE
from delegate.kernels.table import KernelTable
from delegate.program.file import serialize
from delegate.program.model import KernelCall, StorageKind
from delegate.runtime.loaded import LoadedProgram
from tests.support.lowering import assert_same, left
from tests.support.sampling import every


class Stateful(nn.Module):
    """A module made of buffers and a function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=not name.startswith("scratch"))

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def x(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mutated_and_returned(m, a):
    m.total.add_(a)
    return m.total


def returned_before_and_after(m, a):
    before = m.total.clone()
    m.total.mul_(0.5).add_(a)
    return before, m.total, m.total.view(-1)[2:], m.total * 1


def read_after_the_write(m, a):
    old = m.total * 2
    m.total.copy_(a)
    return old + m.total, m.total.sum()


def old_value_used_late(m, a):
    new = m.total + a
    result = m.total.exp() + new
    m.total.copy_(new)
    return result * 2


def chained_rows(m, a):
    m.cache[0] = a
    m.cache[1, 1:3] = a[:2] * 2
    m.cache[:, 3].add_(1)
    m.cache[2:].zero_()
    return m.cache.sum(0)


def two_states_swap(m, a):
    first = m.first.clone()
    m.first.copy_(m.second + a)
    m.second.copy_(first)
    return m.first - m.second


def one_value_for_two_states(m, a):
    new = (a * 2).tanh()
    m.first.copy_(new)
    m.second.copy_(new)
    m.second.add_(1)
    return m.first + m.second


def written_through_a_view(m, a):
    flat = m.cache.view(-1)
    flat[4:8] = a
    m.cache.t()[0].add_(1)
    return flat * 1


def at_a_position(m, a, position):
    m.cache.index_copy_(0, position, a[None])
    m.cache[position] += 1
    return m.cache @ a


def conditional(m, a):
    m.total.copy_(torch.where(a.sum() > 0, m.total + a, m.total))
    return m.total * 2


def branches(m, a):
    m.total.copy_(torch.cond(a.sum() > 0, lambda t, b: t + b, lambda t, b: t * 2 - b, (m.total, a)))
    return m.total * 2


def sizes_from_data(m, a):
    chosen = a[a > 0]
    m.total.add_(chosen.sum())
    m.count.add_(chosen.shape[0])
    later = m.total[m.total > 1]
    m.total.mul_(2)
    return chosen * m.count, later + 1


def shifted_by_itself(m, a):
    m.cache[1:] = m.cache[:-1].clone()
    m.cache[0] = a
    return m.cache.mean(0)


def added_to_itself(m, a):
    m.total.add_(m.total).sub_(a, alpha=2)
    return m.total.clone()


def other_dtype(m, a):
    m.short.add_(a)
    m.count += 1
    return m.short.float() * m.count


def kept_until_the_next_call(m, a):
    result = m.total + 0
    m.total = a * 3
    return result


def only_written(m, a):
    m.total.copy_(a.relu())
    return a + 1


TOTAL, CACHE = {"total": torch.ones(4)}, {"cache": x(4, 4)}
MODULES: dict[str, tuple[nn.Module, Callable[[int], tuple[torch.Tensor, ...]]]] = {
    f.__name__.replace("_", " "): (Stateful(f, **{n: t.clone() for n, t in buffers.items()}), inputs)
    for f, buffers, inputs in [
        (mutated_and_returned, TOTAL, lambda i: (x(4, seed=i),)),
        (returned_before_and_after, TOTAL, lambda i: (x(4, seed=i),)),
        (read_after_the_write, TOTAL, lambda i: (x(4, seed=i),)),
        (old_value_used_late, TOTAL, lambda i: (x(4, seed=i),)),
        (kept_until_the_next_call, TOTAL, lambda i: (x(4, seed=i),)),
        (only_written, TOTAL, lambda i: (x(4, seed=i),)),
        (conditional, TOTAL, lambda i: (x(4, seed=i) + i - 1,)),
        (branches, TOTAL, lambda i: (x(4, seed=i) + i - 1,)),
        (added_to_itself, TOTAL, lambda i: (x(4, seed=i),)),
        (sizes_from_data, TOTAL | {"count": torch.tensor(0)}, lambda i: (x(4, seed=i) + i,)),
        (chained_rows, CACHE, lambda i: (x(4, seed=i),)),
        (written_through_a_view, CACHE, lambda i: (x(4, seed=i),)),
        (shifted_by_itself, CACHE, lambda i: (x(4, seed=i),)),
        (at_a_position, CACHE, lambda i: (x(4, seed=i), torch.tensor([i]))),
        (two_states_swap, {"first": x(4), "second": x(4, seed=1)}, lambda i: (x(4, seed=i),)),
        (one_value_for_two_states, {"first": x(4), "second": x(4, seed=1)}, lambda i: (x(4, seed=i),)),
        (other_dtype, {"short": torch.ones(4).bfloat16(), "count": torch.tensor(0)}, lambda i: (x(4, seed=i),)),
    ]
}


class Norm(nn.Module):
    """Batch normalisation that learns its statistics, beside a counter that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3, momentum=0.3)
        self.register_buffer("steps", torch.tensor(0), persistent=False)

    def forward(self, a: torch.Tensor) -> Any:
        self.steps += 1
        return self.norm(a), self.steps


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        self.calls.add_(a)
        return self.calls * a


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(a) * 0.5)


class OfTwoNames(nn.Module):
    """A submodule known by two names: its buffer is one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Inner()
        self.second = self.first

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.first(a) + self.second(a)


MODULES |= {
    "batch norm that learns": (Norm(), lambda i: (x(2, 3, 4, 4, seed=i) * 3 + 1,)),
    "submodule called twice": (CalledTwice(), lambda i: (x(2, seed=i),)),
    "buffer of two names": (OfTwoNames(), lambda i: (x(2, seed=i),)),
    "scratch": (
        Stateful(lambda m, a: m.scratch.add_(a) * 2, scratch=torch.zeros(4)),
        lambda i: (x(4, seed=i),),
    ),
}


# Module -> the operators that XNNPACK refuses, with the number of their nodes; it runs all others.
REFUSED = {
    "conditional": {"aten.gt.Scalar": 1, "aten.where.self": 1},
    "branches": {"aten.gt.Scalar": 1, "cond": 1},
    "sizes from data": {"aten.gt.Scalar": 2, "aten.index.Tensor": 2, "aten.add.Tensor": 1, "aten.mul.Tensor": 1},
    "chained rows": {"aten.full_like.default": 1},
    "at a position": {"aten.unsqueeze.default": 1, "aten.index_put.default": 2, "aten.index.Tensor": 1},
    "other dtype": {"aten._to_copy.default": 1, "aten.add.Tensor": 1, "aten.mul.Tensor": 1},
    "batch norm that learns": {"aten.add.Tensor": 2, "aten._native_batch_norm_legit_functional.default": 1},
}


def program_of(name: str, backends: Any = ()) -> tuple[nn.Module, delegate.CompiledProgram]:
    module, inputs = MODULES[name]
    module = copy.deepcopy(module).train(name.startswith("batch norm"))
    program = delegate.to_backend(torch.export.export(copy.deepcopy(module), inputs(0)), list(backends))
    assert left(program) == (REFUSED.get(name, {}) if backends else {})
    return module, program


@pytest.mark.parametrize(("name", "backends"), every(3, MODULES, [[], ["xnnpack"]]), ids=str)
@pytest.mark.filterwarnings("ignore:method forward was exported in training mode")
def test_same_as_eager_over_several_calls(name, backends):
    module, program = program_of(name, backends)
    start = {n: t.clone() for n, t in module.named_buffers(remove_duplicate=False)}
    inputs = MODULES[name][1]
    kept = []
    assert program.states
    for i in range(3):
        with torch.no_grad():
            expected = copy.deepcopy(module(*inputs(i)))
        kept.append((program(*inputs(i)), expected))
        for state, tensor in program.states.items():
            assert_same(tensor, dict(module.named_buffers(remove_duplicate=False))[state])
    for got, expected in kept:  # results of earlier calls are the caller's own
        assert_same(got, expected)
    program.reset()
    for state, tensor in program.states.items():
        assert_same(tensor, start[state])


def test_a_program_that_is_saved_starts_with_the_states_of_the_module():
    module, program = program_of("mutated and returned")
    program(torch.ones(4))
    loaded = delegate.load(serialize(program.program))
    np.testing.assert_array_equal(loaded(np.ones(4, np.float32)), module(torch.ones(4)).numpy())


# Operators that stay behind to copy a whole state, and values that are made in a state, for each module.
IN_PLACE = {
    "mutated and returned": 1,
    "returned before and after": 2,
    "read after the write": 1,
    "only written": 1,
    "at a position": 2,
    "chained rows": 4,
    "submodule called twice": 2,
    "other dtype": 2,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_states_are_written_in_place(name):
    method = program_of(name)[1].program.methods[0]
    made = [o for call in method.instructions for o in call.outputs]
    assert sum(method.values[o].storage.kind is StorageKind.STATE for o in made) == IN_PLACE[name]


class Caches(nn.Module):
    """Caches of keys as transformers write them: at positions, by slices, at one position after the other."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.register_buffer("copied", torch.zeros(1, 2, length, 4))
        self.register_buffer("put", torch.zeros(1, 2, length, 4))
        self.register_buffer("sliced", torch.zeros(length, 2, 4))

    def forward(self, a: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.copied.index_copy_(2, position, a)
        self.put[:, :, position] = a * 2
        self.sliced[3:4] = a[0].transpose(0, 1)
        query = a[0, 0]
        return (query @ self.copied[0, 0].T).softmax(-1) @ self.put[0, 1] + self.sliced[3].sum()


def test_caches_of_keys_are_written_at_the_cost_of_one_key():
    module = Caches(64)
    given = (x(1, 2, 1, 4), torch.tensor([5]))
    program = delegate.to_backend(torch.export.export(copy.deepcopy(module), given), [])
    method = program.program.methods[0]
    for call in method.instructions:
        assert isinstance(call, KernelCall)
        for output in call.outputs:
            value = method.values[output]
            whole = np.prod(value.shape) >= module.copied.numel()
            assert not whole or value.storage.kind in (StorageKind.STATE, StorageKind.ALIAS), program.program
    for position in (5, 6, 63):
        args = (x(1, 2, 1, 4, seed=position), torch.tensor([position]))
        assert_same(program(*args), module(*args))


def _clearing_first(function: Callable[..., None], *args: Any, out: Any) -> None:
    """A kernel that cannot run in place: it spoils its result before it reads its arguments."""
    for result in out if isinstance(out, tuple) else (out,):
        result.view(np.uint8 if result.ndim else result.dtype).fill(7)
    function(*args, out=out)


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_library_whose_kernels_cannot_run_in_place_gives_them_other_memory(name):
    module, program = program_of(name)
    table = KernelTable("clearing")
    for kernel in TABLE:
        function = kernel.function if kernel.is_view else partial(_clearing_first, kernel.function)
        table.add(replace(kernel, function=function, in_place=False))
    loaded = LoadedProgram(program.program, kernels=[table])
    for i in range(2):
        inputs = MODULES[name][1](i)
        expected = torch.utils._pytree.tree_leaves(copy.deepcopy(module(*inputs)))
        found = torch.utils._pytree.tree_leaves(loaded(*(t.numpy() for t in inputs)))
        for got, wanted in zip(found, expected, strict=True):
            assert_same(got, wanted)


class _Total(nn.Module):
    """Adds to a buffer, or only reads it."""

    def __init__(self, total: torch.Tensor, reads: bool = False) -> None:
        super().__init__()
        self.register_buffer("total", total)
        self.reads = reads

    def forward(self, x):
        if self.reads:
            return self.total * x
        self.total.add_(x)
        return self.total + 0


class _Inside(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def _writing_and_reading(written, read):
    x = torch.ones(3)
    return {name: torch.export.export(module, (x,)) for name, module in (("add", written), ("read", read))}


@pytest.mark.parametrize("backends", [[], ["xnnpack"]])
def test_a_method_that_only_reads_a_state_reads_what_another_wrote(backends, tmp_path):
    total = torch.zeros(3)
    methods = _writing_and_reading(_Total(total), _Total(total, reads=True))
    inputs = {name: [(torch.full((3,), 2.0),)] * 2 for name in methods}
    program = delegate.to_backend(methods, backends, verify=delegate.Verify(inputs, sqnr_db=100))
    program.save(tmp_path / "model.dlg")
    loaded = delegate.load(tmp_path / "model.dlg")
    x = np.full(3, 2.0, np.float32)
    assert loaded.method("read")(x).tolist() == [0.0] * 3
    for count in (1, 2):
        loaded.method("add")(x)
        assert loaded.method("read")(x).tolist() == [4.0 * count] * 3


def test_a_buffer_of_the_same_name_with_other_content_is_no_state():
    methods = _writing_and_reading(_Total(torch.zeros(3)), _Total(torch.ones(3), reads=True))
    program = delegate.to_backend(methods, [])
    program.method("add")(torch.ones(3))
    assert program.method("read")(torch.ones(3)).tolist() == [1.0] * 3


@pytest.mark.parametrize("both_write", [False, True])
def test_a_state_may_have_two_names(both_write):
    total = torch.zeros(3)
    methods = _writing_and_reading(_Total(total), _Inside(_Total(total, reads=not both_write)))
    x = torch.full((3,), 2.0)
    check = delegate.Verify({name: [(x,)] * 2 for name in methods}, sqnr_db=100)
    program = delegate.to_backend(methods, [], verify=check)
    program.method("add")(x)
    assert program.method("read")(x).tolist() == [4.0] * 3
    assert [*program.states] == ["total"]


def test_a_state_that_overlaps_a_buffer_of_another_method_is_an_error():
    total = torch.zeros(6)
    methods = _writing_and_reading(_Total(total[:3]), _Total(total[2:5], reads=True))
    with pytest.raises(ExportError, match=r"'add' writes the buffer 'total', which shares a part of its memory"):
        delegate.to_backend(methods, [])
