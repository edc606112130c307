"""Check that the results of programs are accurate enough. Without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from delegate.placement.runtime.trials import ProgramRunner, TrialFailed
from delegate.program.dtypes import DType
from delegate.program.instructions import written_inputs
from delegate.program.model import Program, Ref

_OWN_PRECISION = 75.0  # dB: float32 computations are more accurate
_MARGIN = 1.0  # dB above the bound for lower precision, since other inputs may be less accurate
_MAX_LOSS = 25.0  # dB below the most accurate program: more means less than the program's own precision

Array = np.ndarray[Any, np.dtype[Any]]


class AccuracyResult(NamedTuple):
    """Programs that fail the accuracy check.

    Args:
        failed: programs to drop, with the reason.
        inaccurate: programs that miss the bound, which are measured for the table, but never chosen.
    """

    failed: Mapping[str, str]
    inaccurate: Mapping[str, str]


def check_accuracy(
    runners: Mapping[str, ProgramRunner],
    sqnr_db_of: Callable[[str, ProgramRunner], float],
    bound: float | None,
    sqnr_db: dict[str, float],
) -> AccuracyResult:
    """Check the results of programs.

    Args:
        runners: The runners that execute the programs.
        sqnr_db_of: returns the SQNR of a program in dB; raises TrialFailed. NaN, for results without information, fails
            every bound, and passes without a bound.
        bound: the least SQNR in dB; None: the bound for the program's own precision.
        sqnr_db: receives the SQNR of each program.
    """
    failed: dict[str, str] = {}
    for name, runner in runners.items():
        try:
            sqnr_db[name] = sqnr_db_of(name, runner)
        except TrialFailed as failure:
            failed[name] = str(failure)
    known = {name: sqnr_db[name] for name in runners if name not in failed}
    if bound is not None:
        return AccuracyResult(failed, {name: missed for name, f in known.items() if (missed := _why_missed(f, bound))})
    least = min(
        _OWN_PRECISION, max((f for f in known.values() if not math.isnan(f)), default=_OWN_PRECISION) - _MAX_LOSS
    )
    far = {name: f for name, f in known.items() if not (math.isnan(f) or f >= least) or f == -math.inf}
    return AccuracyResult(
        failed | {n: f"{f:.1f} dB, less than the program's own precision" for n, f in far.items()}, {}
    )


def _why_missed(sqnr_db: float, bound: float) -> str:
    """Return the reason that an SQNR misses a bound, with a margin for other inputs; empty if it does not."""
    if not sqnr_db >= bound:
        return f"{sqnr_db:.1f} dB, but {bound:g} dB is required"
    if sqnr_db < min(bound + _MARGIN, _OWN_PRECISION):
        return (
            f"{sqnr_db:.1f} dB, but {bound:g} dB is required, and {_MARGIN:g} dB more for inputs that are not measured"
        )
    return ""


def read_results(
    runner: ProgramRunner, program: Program, name: str, call: Sequence[Any]
) -> list[tuple[Array, DType | None]]:
    """Return the arrays of a call, each with its dtype; None for numbers.

    They are the outputs, then the inputs that the method writes to, then the states by name. Raises TrialFailed.
    """
    method = next(m for m in program.methods if m.name == name)
    dtypes = [method.values[o.index].dtype if isinstance(o, Ref) else None for o in method.outputs]
    dtypes += [method.values[method.inputs[number].value].dtype for number in compared_inputs(program, name)]
    dtypes += [state.dtype for state in sorted(program.states, key=lambda state: state.name)]
    return [(a, d) for a, d in zip(runner.outputs(call), dtypes, strict=True) if a is not None]


def compared_inputs(program: Program, name: str) -> list[int]:
    """Return the numbers of the inputs that a method writes to, in order."""
    return sorted(written_inputs(program, next(m for m in program.methods if m.name == name)))


def lowest_sqnr_db(figures: Iterable[float]) -> float:
    """Return the lowest SQNR of several outputs without NaN; NaN if all are NaN."""
    return min((figure for figure in figures if not math.isnan(figure)), default=math.nan)
