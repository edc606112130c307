"""Tensors that pass between partitions of one device stay in its memory, and what crosses its border does so once.

What the host reads too is copied out behind the partition that makes it; what several partitions read is copied in
before the first of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from delegate.emit.shared import SharedTables
from delegate.program.blocks import walk
from delegate.program.lifetimes import reads, refs
from delegate.program.model import (
    COPY_ACROSS,
    Block,
    DelegateCall,
    Home,
    Instruction,
    KernelCall,
    Method,
    Ref,
    Storage,
    StructuredCall,
    Value,
)
from delegate.program.renumber import renumbered, renumbered_arg
from delegate.program.stages import depends_on_data
from delegate.runtime.storage import UNPLANNED


def keep_on_devices(method: Method, tables: SharedTables) -> Method:
    """The method with the values in a device's memory that one delegate makes and another one reads.

    What something else reads as well is copied to the host behind the delegate that makes it. Where sizes depend on
    data all values lie in the host's memory: the runtime runs such a method in stages, which know no other.
    """
    if not tables.spaces or depends_on_data(method):
        return method
    spaces = [spec.space for spec in tables.delegates]
    readers = _readers(method, spaces)
    made = {o: spaces[c.delegate] for c in walk(method.instructions) if isinstance(c, DelegateCall) for o in c.outputs}
    kept = {o: s for o, s in made.items() if s and s in readers[o] and method.values[o].storage == UNPLANNED}
    shared = _shared(method, spaces, kept)
    if not kept and not shared:
        return method
    return _Keeper(method, tables, spaces, kept, shared, readers).method()


def _readers(method: Method, spaces: Sequence[int]) -> dict[int, set[int]]:
    """By value, the memory spaces that those who read it know; 0 for all but delegates of a device."""
    found: dict[int, set[int]] = defaultdict(set)
    for call in walk(method.instructions):
        space = spaces[call.delegate] if isinstance(call, DelegateCall) else 0
        blocks = call.blocks if isinstance(call, StructuredCall) else ()
        for index in (*reads(call), *(o for b in blocks for o in b.outputs)):
            found[index].add(space)
    for index in refs(method.outputs):
        found[index].add(0)
    return found


def _shared(method: Method, spaces: Sequence[int], kept: Mapping[int, int]) -> list[tuple[int, int]]:
    """The values that several delegates of a memory space read and that do not lie there, each with the space."""
    calls = list(walk(method.instructions))
    made = {o for c in calls for o in c.outputs}
    wanted = Counter(
        (i, spaces[c.delegate])
        for c in calls
        if isinstance(c, DelegateCall) and spaces[c.delegate]
        for i in dict.fromkeys(c.inputs)
    )
    return [
        (index, space)
        for (index, space), count in wanted.items()
        if count > 1
        and kept.get(index) != space
        and (method.values[index].storage.home is Home.INPUT) != (index in made)  # not one that the module writes to
        and method.values[index].storage.home in (Home.INPUT, UNPLANNED.home)
    ]


class _Keeper:
    """Rewrites a method: `kept` values lie in memory spaces, and who cannot read them there gets a copy.

    Of `shared` values there are copies in memory spaces.
    """

    def __init__(
        self,
        method: Method,
        tables: SharedTables,
        spaces: Sequence[int],
        kept: Mapping[int, int],
        shared: Iterable[tuple[int, int]],
        readers: Mapping[int, set[int]],
    ) -> None:
        self._method, self._tables, self._spaces, self._kept, self._readers = method, tables, spaces, kept, readers
        self._shared = tuple(shared)
        self._copies: dict[int, int] = {}
        self._uploads: dict[tuple[int, int], int] = {}

    def method(self) -> Method:
        values = list(self._method.values)
        for index, space in self._kept.items():
            value = values[index]
            if self._readers[index] - {space}:
                self._copies[index] = len(values)
                values.append(Value(f"{value.name} (on the host)", value.dtype, value.shape, UNPLANNED))
            values[index] = value._replace(storage=Storage(Home.ARENA, space, -1))
        for index, space in self._shared:
            self._uploads[index, space] = len(values)
            name = f"{values[index].name} (on the device)"
            values.append(values[index]._replace(name=name, storage=Storage(Home.ARENA, space, -1)))
        used = {*self._kept.values(), *(space for _, space in self._shared)}
        given = [i for i, v in enumerate(self._method.values) if v.storage.home is Home.INPUT]
        return self._method._replace(
            values=tuple(values),
            instructions=(*self._uploaded(given), *self._instructions(self._method.instructions)),
            outputs=tuple(renumbered_arg(o, self._on_host) for o in self._method.outputs),
            arenas=(-1,) * (1 + max(used)),
        )

    def _on_host(self, index: int) -> int:
        return self._copies.get(index, index)

    def _reachable(self, index: int, space: int) -> int:
        """What a delegate of a memory space reads for a value."""
        return index if self._kept.get(index) == space else self._uploads.get((index, space), self._on_host(index))

    def _instructions(self, calls: Iterable[Instruction]) -> tuple[Instruction, ...]:
        made: list[Instruction] = []
        for call in calls:
            made.append(self._instruction(call))
            made += [self._copy(o, self._copies[o]) for o in call.outputs if o in self._copies]
            made += self._uploaded(call.outputs)
        return tuple(made)

    def _uploaded(self, values: Iterable[int]) -> list[KernelCall]:
        """The copies of these values to devices."""
        wanted = set(values)
        return [self._copy(self._on_host(i), copy) for (i, _), copy in self._uploads.items() if i in wanted]

    def _copy(self, source: int, target: int) -> KernelCall:
        return KernelCall(self._tables.operator(COPY_ACROSS), (Ref(source), None), (target,))

    def _instruction(self, call: Instruction) -> Instruction:
        if isinstance(call, KernelCall):
            return renumbered(call, self._on_host)
        if isinstance(call, DelegateCall):
            space = self._spaces[call.delegate]
            return call._replace(inputs=tuple(self._reachable(i, space) for i in call.inputs))
        blocks = tuple(
            Block(b.inputs, tuple(map(self._on_host, b.outputs)), self._instructions(b.instructions))
            for b in call.blocks
        )
        return call._replace(operands=tuple(map(self._on_host, call.operands)), blocks=blocks)
