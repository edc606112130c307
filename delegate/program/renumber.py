"""Renumbering of the values of instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from delegate.program.model import Arg, Block, DelegateCall, Instruction, KernelCall, Ref, StructuredCall

Numbering = Callable[[int], int]  # the old index of a value -> the new one


def renumbered(call: Instruction, number: Numbering) -> Instruction:
    """Return the instruction, its blocks included, with `number(i)` for value i."""
    if isinstance(call, KernelCall):
        outputs = _all(call.outputs, number)
        return KernelCall(call.operator, tuple(renumbered_arg(a, number) for a in call.args), outputs, call.source)
    if isinstance(call, DelegateCall):
        return DelegateCall(call.delegate, _all(call.inputs, number), _all(call.outputs, number))
    blocks = tuple(_block(b, number) for b in call.blocks)
    operands, outputs = _all(call.operands, number), _all(call.outputs, number)
    return StructuredCall(call.kind, operands, call.carried, blocks, outputs, call.sequences)


def renumbered_arg(arg: Arg, number: Numbering) -> Arg:
    """Return the argument with `number(i)` for value i."""
    if isinstance(arg, tuple):
        return tuple(renumbered_arg(a, number) for a in arg)
    return Ref(number(arg.index)) if isinstance(arg, Ref) else arg


def _block(block: Block, number: Numbering) -> Block:
    instructions = tuple(renumbered(call, number) for call in block.instructions)
    return Block(_all(block.inputs, number), _all(block.outputs, number), instructions)


def _all(indices: Iterable[int], number: Numbering) -> tuple[int, ...]:
    return tuple(map(number, indices))
