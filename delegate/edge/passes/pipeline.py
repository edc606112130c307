"""The passes that every program goes through, in order, and how they are run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from delegate.edge.passes.canonicalize import Canonicalize
from delegate.edge.passes.common_subexpressions import CommonSubexpressionElimination
from delegate.edge.passes.dead_code import DeadCodeElimination
from delegate.edge.passes.fold_batch_norm import BatchNormFolding
from delegate.edge.passes.fold_constants import ConstantFolding
from delegate.edge.passes.fuse_views import FuseViews
from delegate.edge.passes.no_ops import NoOpRemoval
from delegate.edge.program import EdgeProgram
from delegate.edge.verifier import verify

Pass = Callable[[EdgeProgram], EdgeProgram]
Listener = Callable[[Pass, EdgeProgram, float], None]  # the pass, what it made, seconds it took

DEFAULT_PASSES: tuple[Pass, ...] = (
    Canonicalize(),
    NoOpRemoval(),
    ConstantFolding(),
    BatchNormFolding(),
    FuseViews(),
    NoOpRemoval(),
    CommonSubexpressionElimination(),
    DeadCodeElimination(),
)


def optimize(
    program: EdgeProgram, passes: Sequence[Pass] = DEFAULT_PASSES, listeners: Sequence[Listener] = ()
) -> EdgeProgram:
    """Run passes over a program, which they rewrite in place, and verify the result once.

    Raises:
        DialectError: the result is no edge program: a pass is at fault.
    """
    for rewrite in passes:
        start = time.perf_counter()
        program = rewrite(program)
        for listener in listeners:
            listener(rewrite, program, time.perf_counter() - start)
    verify(program)
    return program
