"""`delegate diff`: what differs between two program files."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import delegate
from delegate.cli import output
from delegate.cli.arrays import Array, input_names, leaves, read_inputs
from delegate.devtools.diff import differences
from delegate.errors import InputError
from delegate.kernels.half_precision import from_bfloat16
from delegate.program import file
from delegate.program.dtypes import DType
from delegate.program.model import Ref
from delegate.runtime.loaded import LoadedProgram

_RUNS = 10  # timed runs of each program, in turn


def diff(
    before: Annotated[Path, typer.Argument(metavar="A.dlg", help="A program file.")],
    after: Annotated[Path, typer.Argument(metavar="B.dlg", help="Another program file.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--inputs", metavar="[NAME=]A.npy", help="Run both, and compare their results and times."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Method to run, if the programs have several.")] = None,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run partitions of machine code too; see `delegate run`.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Show the differences between two programs: placement, kernels, constants, memory, and with inputs the results."""
    found = differences(file.load(before), file.load(after))
    runs = _compare_runs((before, after), inputs, method, trust_code) if inputs else {}
    if as_json:
        sections = {name: [asdict(change) for change in changes] for name, changes in found.sections.items()}
        output.print_json({"differences": sections, "runs": runs})
        return
    print(found)
    for name, values in runs.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in values.items())}")


def _compare_runs(paths: tuple[Path, Path], inputs: list[str], method: str | None, trust: bool) -> dict[str, Any]:
    """Run both programs on the inputs; return the error of each output, and the median times in milliseconds.

    Raises:
        InputError: the programs return a different number of outputs, or outputs of different shapes.
    """
    with delegate.load(paths[0], trust_code=trust) as first, delegate.load(paths[1], trust_code=trust) as second:
        runs = [_Run(program, method, inputs) for program in (first, second)]
        results = [run.results() for run in runs]
        if len(results[0]) != len(results[1]):
            what = f"{paths[0]} returns {len(results[0])} outputs, but {paths[1]} returns {len(results[1])}"
            raise InputError(what, where="--inputs", remedy="compare programs of one model")
        compared = {f"output {n}": _error(n, *pair) for n, pair in enumerate(zip(*results, strict=True))}
        seconds: list[list[float]] = [[], []]
        for _ in range(_RUNS):
            for run, own in zip(runs, seconds, strict=True):
                start = time.perf_counter()
                run.results()
                own.append(time.perf_counter() - start)
        medians = [f"{statistics.median(own) * 1e3:.3g} ms" for own in seconds]
        return {**compared, "median time": dict(zip(map(str, paths), medians, strict=True))}


class _Run:
    """The call of a method of a program on arrays from files."""

    def __init__(self, program: LoadedProgram, method: str | None, inputs: list[str]) -> None:
        self._method = program.method(method or program.default_method)
        arrays = read_inputs(self._method.name, input_names(self._method.definition), inputs)
        self._arguments = leaves(self._method.inputs, arrays)

    def results(self) -> list[Array]:
        """Return the outputs as arrays of numbers."""
        definition = self._method.definition
        arrays = []
        for ref, result in zip(definition.outputs, self._method.run(self._arguments), strict=True):
            is_half = isinstance(ref, Ref) and definition.values[ref.index].dtype is DType.bfloat16
            arrays.append(from_bfloat16(result) if is_half else np.asarray(result))
        return arrays


def _error(number: int, before: Array, after: Array) -> dict[str, str]:
    """Return the greatest difference between two outputs, and their signal-to-noise ratio."""
    if before.shape != after.shape:
        what = f"output {number} is {list(before.shape)} in one program, and {list(after.shape)} in the other"
        raise InputError(what, where="--inputs", remedy="compare programs of one model")
    wide = [a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in (before, after)]
    same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
    finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
    numbers, off = wide[0][finite], np.abs(wide[1][finite] - wide[0][finite])
    signal, noise = float((np.abs(numbers) ** 2).sum()), float((off**2).sum())
    ratio = "exact" if same.all() else f"{10 * np.log10(signal / noise):.1f} dB" if signal and noise else "none"
    lost = int((~finite & ~same).sum())
    described = {"SQNR": ratio, "greatest difference": f"{off.max(initial=0):.3g}"}
    return {**described, "not finite in one": str(lost)} if lost else described
