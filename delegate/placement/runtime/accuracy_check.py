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
Compare = Callable[[str, ProgramRunner], float | None]  # returns the SQNR of a program's results in dB


class AccuracyResult(NamedTuple):
    """Programs that fail the accuracy check.

    Args:
        failed: programs to drop, with the reason.
        inaccurate: programs that miss the bound, which are measured for the table, but never chosen.
        sqnr_db: the SQNR of each compared program, in dB.
    """

    failed: Mapping[str, str]
    inaccurate: Mapping[str, str]
    sqnr_db: Mapping[str, float]


def check_accuracy(
    runners: Mapping[str, ProgramRunner],
    sqnr_db_of: Compare,
    bound: float | None,
) -> AccuracyResult:
    """Check the results of programs.

    Args:
        runners: The runners that execute the programs.
        sqnr_db_of: returns the SQNR of a program in dB; raises TrialFailed. NaN, for results without information, fails
            every bound, and passes without a bound. None, if it is unknown, passes.
        bound: the least SQNR in dB; None: the bound for the program's own precision.
    """
    failed: dict[str, str] = {}
    known: dict[str, float] = {}
    for name, runner in runners.items():
        try:
            if (sqnr_db := sqnr_db_of(name, runner)) is not None:
                known[name] = sqnr_db
        except TrialFailed as failure:
            failed[name] = str(failure)
    if bound is not None:
        missed = {name: why for name, f in known.items() if (why := _why_missed(f, bound))}
        return AccuracyResult(failed, missed, known)
    least = min(
        _OWN_PRECISION, max((f for f in known.values() if not math.isnan(f)), default=_OWN_PRECISION) - _MAX_LOSS
    )
    far = {name: f for name, f in known.items() if not (math.isnan(f) or f >= least) or f == -math.inf}
    failed |= {n: f"{f:.1f} dB, less than the program's own precision" for n, f in far.items()}
    return AccuracyResult(failed, {}, known)


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
    dtypes += [method.values[method.inputs[number].value].dtype for number in list_compared_inputs(program, name)]
    dtypes += [state.dtype for state in sorted(program.states, key=lambda state: state.name)]
    return [(a, d) for a, d in zip(runner.outputs(call), dtypes, strict=True) if a is not None]


def list_compared_inputs(program: Program, name: str) -> list[int]:
    """Return the numbers of the inputs that a method writes to, in order."""
    return sorted(written_inputs(program, next(m for m in program.methods if m.name == name)))


def lowest_sqnr_db(figures: Iterable[float]) -> float:
    """Return the lowest SQNR of several outputs without NaN; NaN if all are NaN."""
    return min((figure for figure in figures if not math.isnan(figure)), default=math.nan)
