"""Binding control flow: a structured call becomes a step over the steps of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from delegate.program.blocks import block_bases
from delegate.program.model import Block, Home, Instruction, Structure, StructuredCall
from delegate.runtime.arrays import Arrays
from delegate.runtime.blocks import BoundBlock, IfStep, Moves, ScanStep, WhileStep
from delegate.runtime.steps import Step

Bind = Callable[[Iterable[Instruction]], list[Step]]


def structured_step(arrays: Arrays, call: StructuredCall, bind: Bind, method: str) -> Step:
    """The step of a structured call.

    Args:
        arrays: of the method.
        call: what is bound.
        bind: makes the steps of instructions.
        method: its name, for messages.
    """
    place = f"method {method}, {call.kind.name.lower()}"
    blocks = [_bound_block(arrays, call, block, bind) for block in call.blocks]
    if call.kind is Structure.IF:
        leave = [_moves(arrays, block.outputs, call.outputs) for block in call.blocks]
        then, other = zip(blocks, leave, strict=True)
        return IfStep(place, arrays.entries(call.operands[:1]), then, other)
    kept, body = call.outputs[: call.carried], call.blocks[-1]
    start = _moves(arrays, call.operands[: call.carried], kept)
    advance = _moves(arrays, body.outputs[: call.carried], kept)
    if call.kind is Structure.WHILE:
        holds = arrays.entries(call.blocks[0].outputs)
        return WhileStep(place, start, blocks[0], holds, blocks[1], advance)
    behind = call.carried + call.sequences
    wholes, parts = call.operands[call.carried : behind], body.inputs[call.carried : behind]
    results, stacks = body.outputs[call.carried :], call.outputs[call.carried :]
    sequences = arrays.entries(wholes), arrays.entries(parts)
    return ScanStep(place, start, sequences, blocks[0], (arrays.entries(results), arrays.entries(stacks)), advance)


def _bound_block(arrays: Arrays, call: StructuredCall, block: Block, bind: Bind) -> BoundBlock:
    bases = dict(block_bases(call, block))
    for index, base in bases.items():
        if arrays.storage[index].home is Home.ALIAS:
            arrays.identify(index, base)
    return BoundBlock(_moves(arrays, list(bases.values()), list(bases)), bind(block.instructions))


def _moves(arrays: Arrays, sources: Sequence[int], targets: Sequence[int]) -> Moves:
    """Copies of values to others; none where both are one value."""
    pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if arrays.same(s) != arrays.same(t)]
    owners = [arrays.owner(t) for _, t in pairs]
    staged = [
        (i, arrays.room(s))
        for i, (s, _) in enumerate(pairs)
        if arrays.owner(s) in owners[:i] or arrays.owner(s) in owners[i + 1 :]
    ]
    return Moves(arrays.entries(s for s, _ in pairs), arrays.entries(t for _, t in pairs), staged)
