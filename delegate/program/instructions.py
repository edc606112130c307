"""Instructions: traversal, the values that they read, their renumbering, writes to the caller's arrays, debug info.

The debug info of a program is its report and the source lines of its instructions, in a segment of their own. The
report has the module path, the operator, the verdicts and the source line of each node, also inside partitions. No call
needs any of it: a file without debug info computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from delegate.errors import ProgramError
from delegate.program.model import (
    Arg,
    Block,
    DelegateCall,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    StorageKind,
    Structure,
    StructuredCall,
)


def walk(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """Yield instructions in order; the instructions of blocks follow their structured call."""
    for call in instructions:
        yield call
        if isinstance(call, StructuredCall):
            for block in call.blocks:
                yield from walk(block.instructions)


def block_bases(call: StructuredCall, block: Block) -> Iterator[tuple[int, int]]:
    """Yield the inputs of a block that equal another value at its start, each with that value.

    For a carried input it is the result of the call, which holds the carried value between iterations, while for a
    captured input it is the operand. Parts of sequences equal no other value.
    """
    first_captured = call.carried + call.sequences
    captured = operands(call)[first_captured:]
    yield from zip(block.inputs[: call.carried], call.outputs[: call.carried], strict=True)
    yield from zip(block.inputs[first_captured:], captured, strict=True)


def operands(call: StructuredCall) -> tuple[int, ...]:
    """Return the operands that the blocks get: all but the predicate of IF."""
    return call.operands[1:] if call.kind is Structure.IF else call.operands


def reads(call: Instruction) -> Iterator[int]:
    """Return the values that an instruction takes; of control flow its operands, not the reads of its blocks."""
    if isinstance(call, KernelCall):
        return refs(call.args)
    return iter(call.operands if isinstance(call, StructuredCall) else call.inputs)


def refs(args: Iterable[Arg]) -> Iterator[int]:
    """Yield the values in arguments, those inside lists too, in order."""
    for arg in args:
        if isinstance(arg, tuple):
            yield from refs(arg)
        elif isinstance(arg, Ref):
            yield arg.index


Numbering = Callable[[int], int]  # the old index of a value -> the new one


def renumber(call: Instruction, number: Numbering) -> Instruction:
    """Return the instruction, its blocks included, with `number(i)` for value i."""
    if isinstance(call, KernelCall):
        outputs = _all(call.outputs, number)
        return KernelCall(call.operator, tuple(renumber_arg(a, number) for a in call.args), outputs, call.source)
    if isinstance(call, DelegateCall):
        return DelegateCall(call.delegate, _all(call.inputs, number), _all(call.outputs, number))
    blocks = tuple(_block(b, number) for b in call.blocks)
    operands, outputs = _all(call.operands, number), _all(call.outputs, number)
    return StructuredCall(call.kind, operands, call.carried, blocks, outputs, call.sequences)


def renumber_arg(arg: Arg, number: Numbering) -> Arg:
    """Return the argument with `number(i)` for value i."""
    if isinstance(arg, tuple):
        return tuple(renumber_arg(a, number) for a in arg)
    return Ref(number(arg.index)) if isinstance(arg, Ref) else arg


def _block(block: Block, number: Numbering) -> Block:
    instructions = tuple(renumber(call, number) for call in block.instructions)
    return Block(_all(block.inputs, number), _all(block.outputs, number), instructions)


def _all(indices: Iterable[int], number: Numbering) -> tuple[int, ...]:
    return tuple(map(number, indices))


COPY = "aten.copy.default"


def written_input(program: Program, method: MethodDefinition, call: KernelCall) -> int | None:
    """Return the number of the input that an instruction overwrites; None for any other instruction.

    The instruction's arguments must have been checked.
    """
    updates_first = len(call.outputs) == 1 and call.args[:1] == (Ref(call.outputs[0]),)
    if not updates_first or program.operators[call.operator] != COPY:
        return None
    storage = method.values[call.outputs[0]].storage
    return storage.index if storage.kind is StorageKind.INPUT else None


def written_inputs(program: Program, method: MethodDefinition) -> tuple[int, ...]:
    """Return the numbers of all inputs that a method writes to."""
    calls = (c for c in walk(method.instructions) if isinstance(c, KernelCall))
    numbers = (written_input(program, method, call) for call in calls)
    return tuple(dict.fromkeys(number for number in numbers if number is not None))


def source_of(method: MethodDefinition, call: KernelCall) -> str:
    """Return the user's line that a kernel call comes from; empty if it is unknown."""
    return method.sources[call.source] if call.source >= 0 else ""


def describe_operator(operator: str, name: str, line: str) -> str:
    """Return an operator, the name of its node and the user's source line as one text, e.g. of a node with NaN."""
    return f"{operator} ({name}){f' at {line}' if line else ''}"


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

    def add_to(self, program: Program) -> Program:
        """Return the program with this debug info; raise ProgramError if it has other methods."""
        return program._replace(
            report=self.report,
            methods=_with_sources(program.methods, self.methods),
            fallbacks=_with_sources(program.fallbacks, self.fallbacks),
        )


def strip_debug_info(program: Program) -> Program:
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
