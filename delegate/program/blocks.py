"""Which values hold what goes into the blocks of control flow: planner, verifier and runtime must agree on it."""

from __future__ import annotations

from collections.abc import Iterator

from delegate.program.model import Block, Structure, StructuredCall


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
