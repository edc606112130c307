"""Rewrites of edge programs. A pass returns the program, and whether it changed anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from delegate.edge.program import EdgeProgram


class PassResult(NamedTuple):
    """A rewritten program.

    Args:
        program: the same object or another one; its graph is the input's graph, rewritten in place.
        modified: true if nodes, their arguments or constants changed.
    """

    program: EdgeProgram
    modified: bool


Pass = Callable[[EdgeProgram], PassResult]
