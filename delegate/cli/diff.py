"""`delegate diff`: what differs between two program files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import delegate
from delegate.cli import output
from delegate.cli.arrays import Array, input_names, largest_input, read_inputs
from delegate.cli.options import TrustCode, method_names
from delegate.devtools.diff import differences
from delegate.errors import InputError
from delegate.kernels.half_precision import from_bfloat16
from delegate.program import file
from delegate.program.dtypes import DType
from delegate.program.model import Ref
from delegate.runtime.arguments import leaves
from delegate.runtime.loaded import LoadedProgram

_RUNS = 10  # timed runs of each program, in turn


def diff(
    before: Annotated[Path, typer.Argument(metavar="A.dlg", help="A program file.")],
    after: Annotated[Path, typer.Argument(metavar="B.dlg", help="Another program file.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--inputs", metavar="[NAME=]A.npy", help="Run both, and compare their results and times."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", autocompletion=method_names, help="Method to run, if the programs have several."),
    ] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Show the differences between two programs: placement, kernels, constants, memory, and with inputs the results."""
    found = differences(file.load(before), file.load(after))
    run = _compare_runs((before, after), inputs, method, trust_code) if inputs else None
    if as_json:
        sections = {name: [asdict(change) for change in changes] for name, changes in found.sections.items()}
        output.print_json({"differences": sections, "runs": {} if run is None else {run.method: run.to_json()}})
        return
    output.show(*found.lines(width=output.width()))
    for line in () if run is None else run.lines():
        output.show(line)


@dataclass(frozen=True, slots=True)
class _ValueDifference:
    """The difference between a value of two programs.

    Args:
        name: e.g. "output 0" or "state cache".
        is_equal: all elements are equal, with NaN at the same places.
        sqnr_db: the signal-to-noise ratio of the elements that are finite in both; None if one of both has no power.
        greatest_difference: The greatest difference between these elements.
        not_finite_in_one: the number of other elements that differ.
    """

    name: str
    is_equal: bool
    sqnr_db: float | None
    greatest_difference: float
    not_finite_in_one: int

    def __str__(self) -> str:
        ratio = "exact" if self.is_equal else "none" if self.sqnr_db is None else f"{self.sqnr_db:.1f} dB"
        lost = f", not finite in one {self.not_finite_in_one}" if self.not_finite_in_one else ""
        return f"{self.name}: SQNR {ratio}, greatest difference {self.greatest_difference:.3g}{lost}"


@dataclass(frozen=True, slots=True)
class _RunDifferences:
    """The differences between two runs of a method, and the median time of each program in milliseconds."""

    method: str
    values: tuple[_ValueDifference, ...]
    medians: Mapping[str, float]

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        yield from map(str, self.values)
        yield f"median time: {', '.join(f'{path} {median:.3g} ms' for path, median in self.medians.items())}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with numbers."""
        return {"values": [asdict(value) for value in self.values], "median_ms": dict(self.medians)}


def _compare_runs(paths: tuple[Path, Path], inputs: list[str], method: str | None, trust: bool) -> _RunDifferences:
    """Run both programs on the inputs, from their initial states, and compare their outputs and states.

    Raises:
        InputError: the programs have several methods and none is named. Or they return a different number of outputs,
            or outputs of different shapes.
    """
    with delegate.load(paths[0], trust_code=trust) as first, delegate.load(paths[1], trust_code=trust) as second:
        names = list(dict.fromkeys((*first.methods, *second.methods)))
        if method is None and len(names) > 1:
            what = f"the programs have several methods: {', '.join(names)}"
            raise InputError(what, where="--inputs", remedy="name the one to run with --method")
        runs = [_Run(program, method or names[0], inputs) for program in (first, second)]
        outputs = [run.results() for run in runs]
        if len(outputs[0]) != len(outputs[1]):
            what = f"{paths[0]} returns {len(outputs[0])} outputs, but {paths[1]} returns {len(outputs[1])}"
            raise InputError(what, where="--inputs", remedy="compare programs of one model")
        values = [_difference(f"output {n}", *pair) for n, pair in enumerate(zip(*outputs, strict=True))]
        states = [run.states() for run in runs]
        shared = [name for name in states[0] if name in states[1]]
        values += [_difference(f"state {name}", states[0][name], states[1][name]) for name in shared]
        seconds: list[list[float]] = [[], []]
        for _ in output.count_with_bar(_RUNS, "timing both programs"):
            for run, own in zip(runs, seconds, strict=True):
                start = time.perf_counter()
                run.results()
                own.append(time.perf_counter() - start)
        medians = [statistics.median(own) * 1e3 for own in seconds]
        return _RunDifferences(method or names[0], tuple(values), dict(zip(map(str, paths), medians, strict=True)))


class _Run:
    """The call of a program's method on arrays from files."""

    def __init__(self, program: LoadedProgram, method: str, inputs: list[str]) -> None:
        self._program, self._method = program, program.method(method)
        definition = self._method.definition
        arrays = read_inputs(self._method.name, input_names(definition), inputs, largest_input(definition))
        self._arguments = leaves(self._method.inputs, arrays)

    def results(self) -> list[Array]:
        """Return the outputs as arrays of numbers."""
        definition = self._method.definition
        arrays = []
        for ref, result in zip(definition.outputs, self._method.run(self._arguments), strict=True):
            is_half = isinstance(ref, Ref) and definition.values[ref.index].dtype is DType.bfloat16
            arrays.append(from_bfloat16(result) if is_half else np.asarray(result))
        return arrays

    def states(self) -> dict[str, Array]:
        """Return the states as arrays of numbers, by name."""
        dtypes = self._program.state_dtypes
        states = self._program.snapshot().items()
        return {name: from_bfloat16(a) if dtypes[name] is DType.bfloat16 else a for name, a in states}


def _difference(name: str, before: Array, after: Array) -> _ValueDifference:
    """Compare two values; raises InputError if their shapes differ."""
    if before.shape != after.shape:
        what = f"{name} is {list(before.shape)} in one program, and {list(after.shape)} in the other"
        raise InputError(what, where="--inputs", remedy="compare programs of one model")
    wide = [a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in (before, after)]
    same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
    finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
    numbers, off = wide[0][finite], np.abs(wide[1][finite] - wide[0][finite])
    signal, noise = float((np.abs(numbers) ** 2).sum()), float((off**2).sum())
    ratio = float(10 * np.log10(signal / noise)) if signal and noise else None
    return _ValueDifference(name, bool(same.all()), ratio, float(off.max(initial=0)), int((~finite & ~same).sum()))
