"""Rewrites of edge programs: functions that change the graph in place and return the program."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch.fx import Graph

from delegate.edge.graphs import graph_modules
from delegate.edge.program import EdgeProgram

Pass = Callable[[EdgeProgram], EdgeProgram]


def in_each_graph(rewrite: Callable[[Graph], None]) -> Pass:
    """Return the pass that rewrites the graph of a program and the bodies of its control flow, in place."""

    @functools.wraps(rewrite)
    def rewrite_all(program: EdgeProgram) -> EdgeProgram:
        for module in graph_modules(program.graph_module):
            rewrite(module.graph)
        return program

    return rewrite_all
