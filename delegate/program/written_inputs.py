"""Writes to the caller's arrays. Only one form of instruction does so: `aten.copy.default` of a new value into an
input.
"""

from __future__ import annotations

from delegate.program.blocks import walk
from delegate.program.model import KernelCall, Method, Program, Ref, StorageKind

COPY = "aten.copy.default"


def written_input(program: Program, method: Method, call: KernelCall) -> int | None:
    """Return the number of the input that an instruction overwrites; None for any other instruction.

    The instruction's arguments must have been checked.
    """
    updates_first = len(call.outputs) == 1 and call.args[:1] == (Ref(call.outputs[0]),)
    if not updates_first or program.operators[call.operator] != COPY:
        return None
    storage = method.values[call.outputs[0]].storage
    return storage.index if storage.kind is StorageKind.INPUT else None


def written_inputs(program: Program, method: Method) -> tuple[int, ...]:
    """Return the numbers of all inputs that a method writes to."""
    calls = (c for c in walk(method.instructions) if isinstance(c, KernelCall))
    numbers = (written_input(program, method, call) for call in calls)
    return tuple(dict.fromkeys(number for number in numbers if number is not None))
