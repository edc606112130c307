"""Updates of states: in the state's own memory if nothing reads its old content any more, else copied at the end.

A functional graph makes a new tensor for every write to a buffer. If each step from the old value to the new one can
run in place, the steps write to the state itself. Then an update of a key cache costs as much as the new key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from delegate.emit.tables import Tables
from delegate.program.instructions import reads, refs, walk
from delegate.program.model import Arg, Instruction, KernelCall, Ref, StorageKind, StructuredCall


def update_in_place(
    tables: Tables, instructions: Sequence[Instruction], results: Iterable[Arg], updates: Mapping[int, int]
) -> list[int]:
    """Move new values into their states, in `tables`; return the old values whose updates must be copied.

    Args:
        tables: tables of the method; its kernels declare if they run in place.
        instructions: the instructions of the method, without the copies of updates.
        results: results of the method.
        updates: the value of every mutated state or input at the start of the method -> its new value at the end.
    """
    reads = _Reads(tables, instructions, [*refs(results), *updates.values()])
    return [old for old, new in updates.items() if not _move(tables, instructions, reads, old, new)]


def _move(tables: Tables, instructions: Sequence[Instruction], reads: _Reads, old: int, new: int) -> bool:
    """Move as many last steps of an update as possible into the state; return true if the update needs no copy."""
    if tables.values[old].storage.kind is not StorageKind.STATE:
        return False
    written = list(_way_back(tables, instructions, reads, old, new))
    while written:
        place = reads.computed_at[written[-1]]
        if reads.is_free(old, place, _in_place(tables, instructions[place], old)):
            for index in written:
                tables.values[index] = tables.values[index]._replace(storage=tables.values[old].storage)
            return True
        written.pop()
    return False


def _way_back(tables: Tables, instructions: Sequence[Instruction], reads: _Reads, old: int, new: int) -> Iterator[int]:
    """Yield the values that could use the state's memory, the last one first; each is in place on its predecessor."""
    state, value = tables.values[old], new
    while value in reads.computed_at:
        result = tables.values[value]
        place = reads.computed_at[value]
        call = instructions[place]
        fits = (result.dtype, result.shape) == (state.dtype, state.shape) and result.storage.kind is StorageKind.ARENA
        if not fits or isinstance(call, StructuredCall) or reads.owner[value] != value:
            return
        yield value
        first = _first(call)
        if first is None or not reads.is_free(first, place, _in_place(tables, call, first)):
            return
        value = first


def _first(call: Instruction) -> int | None:
    """Return the value that is the first argument of a kernel; None for another instruction."""
    first = call.args[0] if isinstance(call, KernelCall) and call.args else None
    return first.index if isinstance(first, Ref) else None


def _in_place(tables: Tables, call: Instruction, value: int) -> bool:
    """Return true if the instruction may write its result to this value, which must only be its first argument."""
    if not isinstance(call, KernelCall) or _first(call) != value or len(call.outputs) != 1:
        return False
    kernel = tables.kernel_of(call)
    return kernel is not None and kernel.in_place


class _Reads:
    """The readers, the writer and the memory owner of each value of a method's instructions.

    A read inside control flow counts as a read by the control flow itself.

    Args:
        at_end: values that are read after the last instruction.
    """

    def __init__(self, tables: Tables, instructions: Sequence[Instruction], at_end: Iterable[int]) -> None:
        states: dict[int, int] = {}
        self.owner = list(range(len(tables.values)))
        self.computed_at: dict[int, int] = {}
        self._readers: dict[int, list[tuple[int, int]]] = {}  # owner -> (place, value that is read)
        for index, value in enumerate(tables.values):
            if value.storage.kind is StorageKind.STATE:
                self.owner[index] = states.setdefault(value.storage.index, index)
        for place, call in enumerate(instructions):
            self._read(place, _read_by(call))
            for output in call.outputs:
                self.computed_at[output] = place
            if isinstance(call, KernelCall) and (kernel := tables.kernel_of(call)) and kernel.is_view:
                base = _first(call)
                assert base is not None
                for output in call.outputs:
                    self.owner[output] = self.owner[base]
        self._read(len(instructions), at_end)

    def _read(self, place: int, values: Iterable[int]) -> None:
        for value in values:
            self._readers.setdefault(self.owner[value], []).append((place, value))

    def is_free(self, value: int, place: int, in_place: bool) -> bool:
        """Return true if the instruction at `place` may overwrite the memory of a value: nothing reads it later.

        Args:
            in_place: true if that instruction itself may read the value, once.
        """
        late = [read for read in self._readers.get(self.owner[value], ()) if read[0] >= place]
        return not late or (in_place and late == [(place, value)])


def _read_by(call: Instruction) -> Iterator[int]:
    """Yield all values that an instruction reads, also inside blocks."""
    for each in walk((call,)):
        yield from reads(each)
        if isinstance(each, StructuredCall):
            yield from (output for block in each.blocks for output in block.outputs)
