"""The debug info of a program: its report and the source lines of its instructions, in a segment of their own.

The report has the module path, the operator, the verdicts and the source line of each node, also inside partitions.
No call needs any of it: a file without debug info computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from delegate.errors import ProgramError
from delegate.program.model import Block, Instruction, KernelCall, MethodDefinition, Program, StructuredCall


class DebugInfo(NamedTuple):
    """The parts of a program that explain it.

    Args:
        report: the partition report as JSON.
        methods, fallbacks: the source lines of each method and of each fallback.
    """

    report: str
    methods: tuple[tuple[str, ...], ...]
    fallbacks: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, program: Program) -> DebugInfo:
        """Return the debug info of a program, which may be without content."""
        lines = [tuple(m.sources for m in methods) for methods in (program.methods, program.fallbacks)]
        return cls(program.report, *lines)

    def __bool__(self) -> bool:
        return bool(self.report) or any((*self.methods, *self.fallbacks))

    def added_to(self, program: Program) -> Program:
        """Return the program with this debug info; raise ProgramError if it has other methods."""
        return program._replace(
            report=self.report,
            methods=_with_sources(program.methods, self.methods),
            fallbacks=_with_sources(program.fallbacks, self.fallbacks),
        )


def stripped(program: Program) -> Program:
    """Return the program without debug info."""
    return program._replace(
        report="",
        methods=tuple(map(_without_sources, program.methods)),
        fallbacks=tuple(map(_without_sources, program.fallbacks)),
    )


def _with_sources(
    methods: Sequence[MethodDefinition], sources: Sequence[tuple[str, ...]]
) -> tuple[MethodDefinition, ...]:
    if len(methods) != len(sources):
        what = f"the debug info has source lines of {len(sources)} methods, but the program has {len(methods)}"
        raise ProgramError(what, where="debug info", remedy="lower the model again")
    return tuple(m._replace(sources=lines) for m, lines in zip(methods, sources, strict=True))


def _without_sources(method: MethodDefinition) -> MethodDefinition:
    return method._replace(sources=(), instructions=tuple(map(_without_source, method.instructions)))


def _without_source(call: Instruction) -> Instruction:
    if isinstance(call, KernelCall):
        return call._replace(source=-1)
    if isinstance(call, StructuredCall):
        return call._replace(blocks=tuple(map(_block_without_sources, call.blocks)))
    return call


def _block_without_sources(block: Block) -> Block:
    return block._replace(instructions=tuple(map(_without_source, block.instructions)))
