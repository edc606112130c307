"""The result of a pass: the program, and whether the pass changed anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from delegate.edge.program import EdgeProgram


class PassResult(NamedTuple):
    """A rewritten program.

    Args:
        program: the same object or another; its graph is the one that was given, rewritten in place.
        modified: whether its nodes, their arguments or its constants are others than before.
    """

    program: EdgeProgram
    modified: bool


Pass = Callable[[EdgeProgram], PassResult]
