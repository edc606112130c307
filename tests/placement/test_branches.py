"""Branches of a method that need nothing of each other: found by modules, inputs and outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from delegate.edge.export import to_edge
from delegate.edge.graphs import identify
from delegate.placement.branches import find_branches
from tests.support.placing import Block

X = torch.randn(4, 16)


def chain() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(3)))


class Wired(nn.Module):
    """Three encoders that a function wires."""

    def __init__(self, wires: Callable[..., object]) -> None:
        super().__init__()
        self.a, self.b, self.c, self.wires = chain(), chain(), chain(), wires

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> object:
        return self.wires(self, x, y)


def alike(m: Wired, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = m.a(x), m.b(y)
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def functional(m: Wired, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """No module of its own is on either side."""
    for _ in range(20):
        x, y = torch.tanh(x @ x.T @ x), torch.sigmoid(y @ y.T @ y)
    return x + y


def outputs(m: Wired, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    trunk = torch.tanh(x + y)
    first, second = trunk, trunk
    for _ in range(20):
        first, second = torch.tanh(first @ first.T @ first), torch.sigmoid(second @ second.T @ second)
    return first, second


CASES: dict[str, tuple[Callable[..., object], list[str] | int]] = {
    "two encoders, their norms too": (alike, ["a", "b"]),
    "one encoder of both inputs": (lambda m, x, y: m.a(x) * m.a(y), ["a", "a"]),
    "heads of a trunk, joined": (lambda m, x, y: torch.cat([m.b(t := m.a(x)), m.c(t + y)]), ["b", "c"]),
    "three": (lambda m, x, y: m.a(x) + m.b(x) + m.c(y), ["a", "b", "c"]),
    "one behind the other": (lambda m, x, y: m.c(m.b(m.a(x + y))), []),
    "one needs the other late": (lambda m, x, y: m.b(m.a(x + y)) + m.a(x + y), []),
    "a small one": (lambda m, x, y: m.a(m.b(m.c(x))) + torch.relu(y), []),
    "without modules, by inputs": (functional, 2),
    "without modules, by outputs": (outputs, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_what_needs_nothing_of_each_other(name: str) -> None:
    wires, expected = CASES[name]
    ep = torch.export.export(Wired(wires).eval(), (X, torch.randn(4, 16)))
    program = identify(to_edge(ep))
    branches = find_branches(program)
    if isinstance(expected, int):
        assert len(branches) == expected
    else:
        assert [b.name for b in branches] == expected
    nodes = {str(n.meta["identity"]): n for n in program.graph.nodes if "identity" in n.meta}
    for first, second in itertools.permutations([{nodes[i] for i in b.nodes} for b in branches], 2):
        assert not first & second
        dependent = set(first)
        for node in program.graph.nodes:
            if dependent.intersection(node.all_input_nodes):
                dependent.add(node)
        assert not dependent & second
