"""Differences between two programs: methods, placement, operators, constants, partitions, memory and versions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegate.program.instructions import DebugInfo, walk
from delegate.program.model import KernelCall, MethodDefinition, Program, Ref
from delegate.report import Report

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

    def lines(self, width: int | None) -> Sequence[str]:
        """Return the difference in one line if it fits, else its values below its name."""
        values = f"  {self.before} -> {self.after}"
        if width is None or len(str(self)) <= width:
            return (str(self),)
        if len(values) <= width:
            return f"{self.name}:", values
        return f"{self.name}:", f"  {self.before}", f"  -> {self.after}"


@dataclass(frozen=True, slots=True)
class ProgramDifferences:
    """The differences between two programs, by section; equal sections are absent."""

    sections: Mapping[str, tuple[Change, ...]]

    def __bool__(self) -> bool:
        return bool(self.sections)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, most: int = 20, width: int | None = None) -> Iterator[str]:
        """Yield a line per section and per difference.

        Args:
            most: differences of a section.
            width: The greatest width of a line. A longer difference has its values below its name. None: no limit.
        """
        if not self.sections:
            yield "the programs are equal"
        for section, changes in self.sections.items():
            yield f"{section}: {len(changes)} difference{'s' * (len(changes) != 1)}"
            for change in changes[:most]:
                yield from (f"  {line}" for line in change.lines(None if width is None else width - 2))
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
        for number, output in enumerate(method.outputs):
            shown = _type(method, output.index) if isinstance(output, Ref) else str(output)
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
