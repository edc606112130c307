"""Binding of control flow: a structured call becomes a step over the steps of its blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from delegate.errors import ProgramError
from delegate.program.blocks import block_bases
from delegate.program.model import Block, Instruction, StorageKind, Structure, StructuredCall
from delegate.runtime.arrays import Arrays
from delegate.runtime.blocks import BoundBlock, IfStep, Moves, ScanStep, WhileStep
from delegate.runtime.steps import Step

Bind = Callable[[Iterable[Instruction]], list[Step]]


def structured_step(arrays: Arrays, call: StructuredCall, bind: Bind, method: str) -> Step:
    """Return the step of a structured call.

    Args:
        arrays: of the method.
        call: to bind.
        bind: returns the steps of instructions.
        method: its name, for messages.
    """
    place = f"method {method}, {call.kind.name.lower()}"
    blocks = [_bound_block(arrays, call, block, bind) for block in call.blocks]
    if call.kind is Structure.IF:
        _require([((), arrays.shapes[call.operands[0]])], place)
        move_out = [_moves(arrays, block.outputs, call.outputs) for block in call.blocks]
        then, other = zip(blocks, move_out, strict=True)
        return IfStep(place, arrays.entries(call.operands[:1]), then, other)
    carried, body = call.outputs[: call.carried], call.blocks[-1]
    start = _moves(arrays, call.operands[: call.carried], carried)
    advance = _moves(arrays, body.outputs[: call.carried], carried)
    if call.kind is Structure.WHILE:
        holds = arrays.entries(call.blocks[0].outputs)
        _require([((), arrays.shapes[i]) for i in call.blocks[0].outputs], place)
        return WhileStep(place, start, blocks[0], holds, blocks[1], advance)
    end = call.carried + call.sequences
    sequence_values, parts = call.operands[call.carried : end], body.inputs[call.carried : end]
    results, stacks = body.outputs[call.carried :], call.outputs[call.carried :]
    iterations = arrays.shapes[sequence_values[0]][:1]
    pairs = (*zip(sequence_values, parts, strict=True), *zip(stacks, results, strict=True))
    _require([(arrays.shapes[whole], iterations + arrays.shapes[part]) for whole, part in pairs], place)
    sequences = arrays.entries(sequence_values), arrays.entries(parts)
    return ScanStep(place, start, sequences, blocks[0], (arrays.entries(results), arrays.entries(stacks)), advance)


def _require(pairs: Iterable[tuple[tuple[int, ...], tuple[int, ...]]], place: str) -> None:
    """Raise ProgramError unless copies fit. NumPy would broadcast a small value, or leave a part unwritten.

    A truth value may have one element and any shape.
    """
    for first, second in pairs:
        if first != second and not (first == () and math.prod(second) == 1):
            what = f"a value of shape {list(first)} would be one of shape {list(second)}"
            raise ProgramError(what, where=place, remedy="lower the model again; report it if that fails")


def _bound_block(arrays: Arrays, call: StructuredCall, block: Block, bind: Bind) -> BoundBlock:
    bases = dict(block_bases(call, block))
    for index, base in bases.items():
        if arrays.storage[index].kind is StorageKind.ALIAS:
            arrays.identify(index, base)
    return BoundBlock(_moves(arrays, list(bases.values()), list(bases)), bind(block.instructions))


def _moves(arrays: Arrays, sources: Sequence[int], targets: Sequence[int]) -> Moves:
    """Return the copies of values to others; pairs of one identical value need none."""
    pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if arrays.same(s) != arrays.same(t)]
    _require([(arrays.shapes[s], arrays.shapes[t]) for s, t in pairs], "control flow")
    owners = [arrays.owner(t) for _, t in pairs]
    staged = [
        (i, arrays.allocate(s))
        for i, (s, _) in enumerate(pairs)
        if arrays.owner(s) in owners[:i] or arrays.owner(s) in owners[i + 1 :]
    ]
    return Moves(arrays.entries(s for s, _ in pairs), arrays.entries(t for _, t in pairs), staged)
