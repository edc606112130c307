"""Torch tensors that are more than their memory: conjugate or negative by a bit, or expanded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import InputError
from delegate.program.file import serialize
from delegate.testing import assert_same


class Twice(nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a * 2


class Writes(nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + 1


class Holds(nn.Module):
    """Constants that share memory, and differ by a bit."""

    def __init__(self) -> None:
        super().__init__()
        held = torch.randn(3, dtype=torch.complex64)
        self.register_buffer("plain", held)
        self.register_buffer("conjugate", held.conj())
        self.register_buffer("negative", held.conj().imag)

    def forward(self, a: torch.Tensor) -> Any:
        return a * self.plain, a * self.conjugate, a.real * self.negative


def lowered(module: nn.Module, *args: torch.Tensor, **options: Any) -> delegate.CompiledProgram:
    return delegate.to_backend(torch.export.export(module, args, **options), [])


def complex_numbers() -> torch.Tensor:
    return torch.randn(3, 4, dtype=torch.complex64)


BITS = {"conjugate": torch.conj, "negative": torch._neg_view, "both": lambda a: torch._neg_view(a.conj())}


@pytest.mark.parametrize("name", BITS)
def test_inputs(name):
    program, a = lowered(Twice(), complex_numbers()), BITS[name](complex_numbers())
    assert a.is_conj() or a.is_neg()
    assert_same(program(a), a * 2)
    loaded = delegate.load(serialize(program.program))
    np.testing.assert_array_equal(loaded(a), (a * 2).resolve_conj().resolve_neg().numpy())


@pytest.mark.parametrize("name", BITS)
def test_inputs_that_are_written(name):
    program, memory = lowered(Writes(), complex_numbers()), complex_numbers()
    a, b = BITS[name](memory.clone()), BITS[name](memory.clone())
    assert_same(program(a), Writes()(b))
    assert_same(a, b)
    with pytest.raises(InputError, match=r"resolve_conj\(\)"):
        delegate.load(serialize(program.program))(a)


def test_constants():
    torch.manual_seed(0)
    module, a = Holds(), torch.randn(3, dtype=torch.complex64)
    assert_same(lowered(module, a)(a), module(a))


def test_expanded_results():
    class Expands(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return (a + 1).expand(5, 3)

    a = torch.randn(1, 3)
    made = lowered(Expands(), a)(a)  # a warning would be an error
    assert_same(made, Expands()(a))
    made[0, 0] = 7
    assert made[1, 0] == a[0, 0] + 1


def test_numbers_that_differ_in_a_bit():
    """-0.0 equals 0.0, and is another argument of a kernel."""

    class Divides(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a / b.item()

    a = torch.ones(2)
    program = lowered(Divides(), a, torch.tensor(2.0))
    for number in (0.0, -0.0, 0.0, float("nan"), 4.0, float("nan")):
        b = torch.tensor(number)
        assert_same(program(a, b), Divides()(a, b))
