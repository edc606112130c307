"""Differences between two programs: methods, placement, operators, constants, partitions, memory, versions, results."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import delegate
from delegate.cli import output
from delegate.cli.arrays import Array, input_names, read_inputs
from delegate.errors import InputError
from delegate.kernels.half_precision import from_bfloat16
from delegate.program.dtypes import DType
from delegate.program.instructions import DebugInfo, walk
from delegate.program.model import KernelCall, MethodDefinition, Program, Ref
from delegate.report import Report
from delegate.runtime.arguments import leaves
from delegate.runtime.loaded import LoadedProgram

_RUNS = 10  # timed runs of each program, in turn
_NONE = "-"
Facts = Mapping[str, str]  # name -> value, of one program


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; a value is "-" in the program that lacks it."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class ProgramDifferences:
    """The differences between two programs, by section; equal sections are absent."""

    sections: Mapping[str, tuple[Change, ...]]

    def __bool__(self) -> bool:
        return bool(self.sections)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, most: int = 20) -> Iterator[str]:
        """Yield a line per section and per difference, of which each section has `most` at most."""
        if not self.sections:
            yield "the programs are equal"
        for section, changes in self.sections.items():
            yield f"{section}: {len(changes)} difference{'s' * (len(changes) != 1)}"
            for change in changes[:most]:
                yield f"  {change}"
            if len(changes) > most:
                yield f"  and {len(changes) - most} more"


def differences(before: Program, after: Program) -> ProgramDifferences:
    """Return the differences between two programs; raises ProgramError if a report in them cannot be read.

    The time and the text are linear in the programs. Constants are compared by name and content. The placement and
    the weights of the model are compared if both programs have debug info, which holds them.
    """
    sections = {}
    unknown = {"placement", "weights"} if not (before.report and after.report) else set()
    for name, facts in _SECTIONS.items():
        if name in unknown:
            continue
        own, other = facts(before), facts(after)
        names = [n for n in dict.fromkeys((*own, *other)) if own.get(n) != other.get(n)]
        if names:
            sections[name] = tuple(Change(n, own.get(n, _NONE), other.get(n, _NONE)) for n in names)
    return ProgramDifferences(sections)


def _methods(program: Program) -> Facts:
    """Return the tensors that each method takes and returns."""
    facts = {}
    for method in program.methods:
        for leaf in method.inputs:
            tensor = _type(method, leaf.value) if leaf.value >= 0 else repr(leaf.literal)
            facts[f"{method.name} input {leaf.name}"] = tensor
        for number, result in enumerate(method.outputs):
            shown = _type(method, result.index) if isinstance(result, Ref) else str(result)
            facts[f"{method.name} output {number}"] = shown
    return facts


def _type(method: MethodDefinition, index: int) -> str:
    value = method.values[index]
    return f"{value.dtype.name}[{', '.join(map(str, value.shape))}]"


def _placement(program: Program) -> Facts:
    """Return the backend of each node, as the report has it."""
    nodes = Report.from_json(program.report).nodes
    return {f"{node.method} {node.name} ({node.op})": node.backend for node in nodes}


def _weights(program: Program) -> Facts:
    """Return the checksum of each weight of the model, also of those inside partitions."""
    known = Report.from_json(program.report).fingerprints
    return {f"{method} {name}": text for method, own in known.items() for name, text in own.items() if name}


def _operators(program: Program) -> Facts:
    """Return the number of kernel calls of each operator."""
    calls = Counter(
        program.operators[call.operator]
        for method in program.methods
        for call in walk(method.instructions)
        if isinstance(call, KernelCall)
    )
    return {name: f"{count} calls" for name, count in sorted(calls.items())}


def _partitions(program: Program) -> Facts:
    """Return the backend, size and options of each partition."""
    facts = {}
    for spec in program.delegates:
        size = sum(memoryview(program.segments[i]).nbytes for i in (spec.segment, *spec.data))
        digest = _digest(program, spec.segment, *spec.data)
        facts[spec.name] = f"{spec.backend}, {size:,} bytes, sha256 {digest}"
    return facts


def _constants(program: Program) -> Facts:
    """Return the type and content of each constant and of each state's initial value, by name."""
    return {
        f"{kind} {c.name}": f"{c.dtype.name}[{', '.join(map(str, c.shape))}], sha256 {_digest(program, c.segment)}"
        for kind, group in (("constant", program.constants), ("state", program.states))
        for c in group
    }


def _memory(program: Program) -> Facts:
    """Return the bytes of arenas, constants and of all segments."""
    spaces = ["host", *(f"{s.backend}:{s.name}" for s in program.spaces)]
    facts = {
        f"{method.name} arena {space}": f"{size:,} bytes"
        for method in program.methods
        for space, size in zip(spaces, method.arenas, strict=False)
    }
    constants = {c.segment for c in program.constants}
    facts["constants"] = f"{sum(memoryview(program.segments[i]).nbytes for i in constants):,} bytes"
    facts["all segments"] = f"{sum(memoryview(segment).nbytes for segment in program.segments):,} bytes"
    return facts


def _settings(program: Program) -> Facts:
    debug_info = "present" if DebugInfo.of(program) else "none"
    fallback = program.on_fallback
    return {"reaction to a failing partition": fallback, "debug info": debug_info}


def _digest(program: Program, *segments: int) -> str:
    content = hashlib.sha256()
    for segment in segments:
        content.update(program.segments[segment])
    return content.hexdigest()[:12]


_SECTIONS: Mapping[str, Callable[[Any], Facts]] = {
    "methods": _methods,
    "placement": _placement,
    "weights": _weights,
    "kernels": _operators,
    "partitions": _partitions,
    "constants": _constants,
    "memory": _memory,
    "versions": _settings,
}


@dataclass(frozen=True, slots=True)
class ValueDifference:
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
class RunDifferences:
    """The differences between two runs of a method, and the median time of each program in milliseconds."""

    method: str
    values: tuple[ValueDifference, ...]
    medians: Mapping[str, float]

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        yield from map(str, self.values)
        yield f"median time: {', '.join(f'{path} {median:.3g} ms' for path, median in self.medians.items())}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with numbers."""
        return {"values": [asdict(value) for value in self.values], "median_ms": dict(self.medians)}


def compare_runs(
    paths: tuple[Path, Path], inputs: list[str], method: str | None, *, trust_code: bool
) -> RunDifferences:
    """Run both programs on the inputs, from their initial states, and compare their outputs and states.

    Raises:
        InputError: the programs have several methods and none is named. Or they return a different number of outputs,
            or outputs of different shapes.
    """
    with ExitStack() as stack:
        first, second = (stack.enter_context(delegate.load(path, trust_code=trust_code)) for path in paths)
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
        return RunDifferences(method or names[0], tuple(values), dict(zip(map(str, paths), medians, strict=True)))


class _Run:
    """The call of a program's method on arrays from files."""

    def __init__(self, program: LoadedProgram, method: str, inputs: list[str]) -> None:
        self._program, self._method = program, program.method(method)
        definition = self._method.definition
        arrays = read_inputs(self._method.name, input_names(definition), inputs)
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


def _difference(name: str, before: Array, after: Array) -> ValueDifference:
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
    return ValueDifference(name, bool(same.all()), ratio, float(off.max(initial=0)), int((~finite & ~same).sum()))
