"""All passes, in order, with the stages in which each runs, and the function that runs passes over a program."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from delegate.devtools.events import PassRun
from delegate.devtools.listeners import emit, is_heard
from delegate.edge.passes import Pass
from delegate.edge.passes.canonicalize import Canonicalize
from delegate.edge.passes.folding import BatchNormFolding, ConstantFolding
from delegate.edge.passes.fuse_views import FuseViews
from delegate.edge.passes.quantized_layers import SignedProducts, SplitDecodings
from delegate.edge.passes.redundancy import CommonSubexpressionElimination, DeadCodeElimination, NoOpRemoval
from delegate.edge.passes.round_operands import RoundOperands
from delegate.edge.passes.sink_merges import SinkMerges
from delegate.edge.program import EdgeProgram
from delegate.edge.verifier import verify
from delegate.errors import DialectError

VERIFY_VARIABLE = "DELEGATE_VERIFY_PASSES"  # environment variable: "1" verifies the program after each pass

# Stages: the whole program; a region whose compound operators were decomposed for its backend; and the trial
# decomposition of one compound operator, for the support check of its parts.
_PROGRAM, _REGION, _TRIAL = "program", "region", "trial"
_ALL = (_PROGRAM, _REGION, _TRIAL)
_PASSES: tuple[tuple[Pass, tuple[str, ...]], ...] = (
    (Canonicalize(), _ALL),
    (RoundOperands(), (_PROGRAM,)),
    (NoOpRemoval(), _ALL),
    (SignedProducts(), (_PROGRAM,)),
    (ConstantFolding(), (_PROGRAM, _REGION)),
    (BatchNormFolding(), (_PROGRAM,)),
    (SinkMerges(), (_PROGRAM,)),
    (FuseViews(), _ALL),
    (NoOpRemoval(), _ALL),
    (CommonSubexpressionElimination(), _ALL),
    (SplitDecodings(), (_PROGRAM,)),
    (DeadCodeElimination(), _ALL),
)
PROGRAM_PASSES, REGION_PASSES, TRIAL_PASSES = (
    tuple(each for each, stages in _PASSES if stage in stages) for stage in _ALL
)


def optimize(program: EdgeProgram, passes: Sequence[Pass] = PROGRAM_PASSES) -> EdgeProgram:
    """Run passes, which rewrite a program in place, and verify the result.

    If the environment variable VERIFY_VARIABLE is "1", verify the result of each pass that changes the program.

    Args:
        program: the program to rewrite.
        passes: the passes, in order.

    Raises:
        DialectError: a pass made a program that is not an edge program. It is named if each pass is verified.
    """
    each = os.environ.get(VERIFY_VARIABLE) == "1"
    for rewrite in passes:
        before, start = len(program.graph.nodes), time.perf_counter_ns()
        result = rewrite(program)
        program = result.program
        if is_heard():
            duration = time.perf_counter_ns() - start
            name = type(rewrite).__name__
            emit(PassRun(program.name, name, before, len(program.graph.nodes), start, duration))
        if each and result.modified:
            _verify_after(rewrite, program)
    if not each:
        verify(program)
    return program


def _verify_after(rewrite: Pass, program: EdgeProgram) -> None:
    try:
        verify(program)
    except DialectError as error:
        raise error.at(f"after {rewrite}") from error
