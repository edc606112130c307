"""All passes, in order, with the stages in which each runs, and the function that runs passes over a program."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from delegate.edge.passes import Pass
from delegate.edge.passes.canonicalize import canonicalize, round_operands, sign_products, split_decodings
from delegate.edge.passes.folding import fold_batch_norms, fold_constants
from delegate.edge.passes.redundancy import merge_equal_nodes, remove_no_ops, remove_unused
from delegate.edge.passes.views import fuse_views, sink_merges
from delegate.edge.program import EdgeProgram
from delegate.edge.verifier import verify
from delegate.errors import DialectError
from delegate.events import emit, is_heard
from delegate.events.kinds import PassRun

VERIFY_VARIABLE = "DELEGATE_VERIFY_PASSES"  # environment variable: "1" verifies the program after each pass

# Stages: the whole program; a region whose compound operators were decomposed for its backend; and the trial
# decomposition of one compound operator, for the support check of its parts.
_PROGRAM, _REGION, _TRIAL = "program", "region", "trial"
_ALL = (_PROGRAM, _REGION, _TRIAL)
_PASSES: tuple[tuple[Pass, tuple[str, ...]], ...] = (
    (canonicalize, _ALL),
    (round_operands, (_PROGRAM,)),
    (remove_no_ops, _ALL),
    (sign_products, (_PROGRAM,)),
    (fold_constants, (_PROGRAM, _REGION)),
    (fold_batch_norms, (_PROGRAM,)),
    (sink_merges, (_PROGRAM,)),
    (fuse_views, _ALL),
    (remove_no_ops, _ALL),
    (merge_equal_nodes, _ALL),
    (split_decodings, (_PROGRAM,)),
    (remove_unused, _ALL),
)
PROGRAM_PASSES, REGION_PASSES, TRIAL_PASSES = (
    tuple(each for each, stages in _PASSES if stage in stages) for stage in _ALL
)


def optimize(program: EdgeProgram, passes: Sequence[Pass] = PROGRAM_PASSES) -> EdgeProgram:
    """Run passes, which rewrite a program in place, and verify the result.

    If the environment variable VERIFY_VARIABLE is "1", verify the result of each pass, too.

    Args:
        program: the program to rewrite.
        passes: the passes, in order.

    Raises:
        DialectError: a pass made a program that is not an edge program. It is named if each pass is verified.
    """
    for rewrite in passes:
        before, start, name = len(program.graph.nodes), time.perf_counter_ns(), rewrite.__name__
        program = rewrite(program)
        if is_heard():
            duration = time.perf_counter_ns() - start
            emit(PassRun(program.name, name, before, len(program.graph.nodes), start, duration))
        if os.environ.get(VERIFY_VARIABLE) == "1":
            try:
                verify(program)
            except DialectError as error:
                raise error.at(f"after {name}") from error
    verify(program)
    return program
