"""Control flow: iteration over its instructions, and the values that the inputs of its blocks share memory with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from delegate.program.model import Block, Instruction, Structure, StructuredCall


def walk(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """Yield instructions in order; the instructions of blocks follow their structured call."""
    for call in instructions:
        yield call
        if isinstance(call, StructuredCall):
            for block in call.blocks:
                yield from walk(block.instructions)


def block_bases(call: StructuredCall, block: Block) -> Iterator[tuple[int, int]]:
    """Yield the inputs of a block that equal another value at its start, each with that value.

    For a carried input it is the result of the call, which holds the carried value between iterations. For a captured
    input it is the operand. Parts of sequences equal no other value.
    """
    first_captured = call.carried + call.sequences
    captured = operands(call)[first_captured:]
    yield from zip(block.inputs[: call.carried], call.outputs[: call.carried], strict=True)
    yield from zip(block.inputs[first_captured:], captured, strict=True)


def operands(call: StructuredCall) -> tuple[int, ...]:
    """Return the operands that the blocks get: all but the predicate of IF."""
    return call.operands[1:] if call.kind is Structure.IF else call.operands
