"""Running edge programs with torch and comparing them with eager."""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils import _pytree as pytree

from delegate.edge.export import to_edge
from delegate.edge.graphs import call
from delegate.edge.node import op_name
from delegate.edge.passes.pipeline import optimize
from delegate.edge.program import EdgeProgram
from delegate.testing import assert_same


class _Evaluator(torch.fx.Interpreter):
    def call_function(self, target, args, kwargs):
        return call(target, args, kwargs)


def edge(module, args, kwargs=None, *, preserve_ops=frozenset(), dynamic_shapes=None) -> EdgeProgram:
    """The program of a module before any pass."""
    ep = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=dynamic_shapes)
    return to_edge(ep, preserve_ops=preserve_ops)


def run(program: EdgeProgram, args, kwargs=None, states=None):
    """(result in the module's pytree, new values of the mutated states by name)."""
    leaves = iter(pytree.tree_leaves((args, kwargs or {})))
    held = {p: (states or {}).get(program.constant_names[p], value) for p, value in program.constants.items()}
    placeholders = program.graph.find_nodes(op="placeholder")
    values = [held[p.name] if p.name in held else next(leaves) for p in placeholders]
    with torch.no_grad():
        results = _Evaluator(program.graph_module).run(*values, enable_io_processing=False)
    users = len(results) - len(program.mutated)
    new = dict(zip(program.mutated, results[users:], strict=True))
    return pytree.tree_unflatten(list(results[:users]), program.out_spec), new


def assert_as_module(module, program: EdgeProgram, args, kwargs=None, tolerance=1e-5) -> None:
    """Assert that the program gives the results of the module."""
    with torch.no_grad():
        expected = pytree.tree_leaves(module(*args, **(kwargs or {})))
    got = pytree.tree_leaves(run(program, args, kwargs)[0])
    assert_same(got, expected, tolerance, at_least=1e-3)


def ops(program: EdgeProgram) -> Counter[str]:
    """How often each operator occurs, by its name without namespace and overload."""
    return Counter(
        op_name(n).removeprefix("aten.").split(".")[0] for n in program.graph.nodes if n.op == "call_function"
    )


def both(module, args, kwargs=None, **options) -> tuple[EdgeProgram, Counter[str], Counter[str]]:
    """The optimised program, checked against eager, and the operators before and after."""
    program = edge(module, args, kwargs, **options)
    before = ops(program)
    assert_as_module(module, program, args, kwargs)
    program = optimize(program)
    assert_as_module(module, program, args, kwargs)
    return program, before, ops(program)


class WritingBuffers(torch.nn.Module):
    """A count of calls, a history, and a buffer that is only read."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("history", torch.zeros(4, 2))
        self.register_buffer("still", torch.ones(2))

    def forward(self, x):
        self.count.add_(1)
        self.history[1:3, 0] = x
        self.history.t()[1].mul_(2).add_(1)
        return self.history.sum(0) + self.count + self.still
