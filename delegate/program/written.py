"""Writing to the caller's arrays: one form of instruction does, `aten.copy.default` of a new value into an input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from delegate.program.model import Home, Instruction, KernelCall, Method, Program, Ref, StructuredCall

COPY = "aten.copy.default"


def written_input(program: Program, method: Method, call: KernelCall) -> int | None:
    """The number of the input that an instruction gives a new value; None for any other instruction.

    Its arguments must have been checked.
    """
    updates_first = len(call.outputs) == 1 and call.args[:1] == (Ref(call.outputs[0]),)
    if not updates_first or program.operators[call.operator] != COPY:
        return None
    storage = method.values[call.outputs[0]].storage
    return storage.index if storage.home is Home.INPUT else None


def written_inputs(program: Program, method: Method) -> tuple[int, ...]:
    """The numbers of all inputs that a method writes to."""
    found = (written_input(program, method, call) for call in _kernel_calls(method.instructions))
    return tuple(dict.fromkeys(number for number in found if number is not None))


def _kernel_calls(instructions: Iterable[Instruction]) -> Iterator[KernelCall]:
    for call in instructions:
        if isinstance(call, KernelCall):
            yield call
        elif isinstance(call, StructuredCall):
            for block in call.blocks:
                yield from _kernel_calls(block.instructions)
