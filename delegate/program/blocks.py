"""Control flow: its instructions, and which values hold what goes into its blocks, on which all rooms must agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from delegate.program.model import Block, Instruction, Structure, StructuredCall


def walk(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """Instructions in order, those of the blocks of control flow behind it."""
    for call in instructions:
        yield call
        if isinstance(call, StructuredCall):
            for block in call.blocks:
                yield from walk(block.instructions)


def block_bases(call: StructuredCall, block: Block) -> Iterator[tuple[int, int]]:
    """The inputs of a block that equal another value when the block starts, each with that value.

    For a carried input it is the result of the call, which holds the carried value from turn to turn; for a captured
    one it is the operand. Parts of sequences equal no other value.
    """
    behind = call.carried + call.sequences
    captured = operands(call)[behind:]
    yield from zip(block.inputs[: call.carried], call.outputs[: call.carried], strict=True)
    yield from zip(block.inputs[behind:], captured, strict=True)


def operands(call: StructuredCall) -> tuple[int, ...]:
    """What the blocks take: all operands but the predicate."""
    return call.operands[1:] if call.kind is Structure.IF else call.operands
