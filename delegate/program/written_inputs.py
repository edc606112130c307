"""Writing to the caller's arrays: one form of instruction does, `aten.copy.default` of a new value into an input."""

from __future__ import annotations

from delegate.program.blocks import walk
from delegate.program.model import KernelCall, Method, Program, Ref, StorageKind

COPY = "aten.copy.default"


def written_input(program: Program, method: Method, call: KernelCall) -> int | None:
    """The number of the input that an instruction gives a new value; None for any other instruction.

    Its arguments must have been checked.
    """
    updates_first = len(call.outputs) == 1 and call.args[:1] == (Ref(call.outputs[0]),)
    if not updates_first or program.operators[call.operator] != COPY:
        return None
    storage = method.values[call.outputs[0]].storage
    return storage.index if storage.kind is StorageKind.INPUT else None


def written_inputs(program: Program, method: Method) -> tuple[int, ...]:
    """The numbers of all inputs that a method writes to."""
    calls = (c for c in walk(method.instructions) if isinstance(c, KernelCall))
    found = (written_input(program, method, call) for call in calls)
    return tuple(dict.fromkeys(number for number in found if number is not None))
