"""Assignment of values to the memory of devices: tensors between partitions of one device stay there.

Each tensor is copied to or from a device at most once. A tensor that the host reads, too, is copied after the partition
that produces it. A tensor that several partitions read is copied before the first of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from delegate.backend.aot import Region
from delegate.edge.node import nbytes
from delegate.emit.tables import SharedTables
from delegate.memory.storage import UNPLANNED
from delegate.partitioner.extraction import LoweredProgram
from delegate.program.instructions import reads, refs, renumber, renumber_arg, walk
from delegate.program.model import (
    COPY_ACROSS,
    Block,
    DelegateCall,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    Storage,
    StorageKind,
    StructuredCall,
    Value,
)
from delegate.program.stages import depends_on_data
from delegate.report import Report
from delegate.report.rows import PartitionReport


def assign_device_memory(method: MethodDefinition, tables: SharedTables) -> MethodDefinition:
    """Assign values that one delegate produces and another one reads to the device's memory.

    Values that the host reads, too, are copied after the delegate that produces them. If sizes depend on data, all
    values stay in the host's memory: the runtime runs such a method in stages, which use the host's memory only.
    """
    if not tables.spaces or depends_on_data(method):
        return method
    spaces = [spec.space for spec in tables.delegates]
    readers = _readers(method, spaces)
    calls = (c for c in walk(method.instructions) if isinstance(c, DelegateCall))
    produced = {o: spaces[c.delegate] for c in calls for o in c.outputs}
    resident = {o: s for o, s in produced.items() if s and s in readers[o] and method.values[o].storage == UNPLANNED}
    shared = _share(method, spaces, resident)
    if not resident and not shared:
        return method
    return _MemoryAssigner(method, tables, spaces, resident, shared, readers).method()


def _readers(method: MethodDefinition, spaces: Sequence[int]) -> dict[int, set[int]]:
    """Return the memory spaces of each value's readers; 0 for all but delegates of a device."""
    spaces_of: dict[int, set[int]] = defaultdict(set)
    for call in walk(method.instructions):
        space = spaces[call.delegate] if isinstance(call, DelegateCall) else 0
        blocks = call.blocks if isinstance(call, StructuredCall) else ()
        for index in (*reads(call), *(o for b in blocks for o in b.outputs)):
            spaces_of[index].add(space)
    for index in refs(method.outputs):
        spaces_of[index].add(0)
    return spaces_of


def _share(method: MethodDefinition, spaces: Sequence[int], resident: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return values outside of a memory space that several delegates of it read, each with the space."""
    calls = list(walk(method.instructions))
    produced = {o for c in calls for o in c.outputs}
    uses = Counter(
        (i, spaces[c.delegate])
        for c in calls
        if isinstance(c, DelegateCall) and spaces[c.delegate]
        for i in dict.fromkeys(c.inputs)
    )
    return [
        (index, space)
        for (index, space), count in uses.items()
        if count > 1
        and resident.get(index) != space
        and (method.values[index].storage.kind is StorageKind.INPUT)
        != (index in produced)  # not one that the module writes to
        and method.values[index].storage.kind in (StorageKind.INPUT, UNPLANNED.kind)
    ]


class _MemoryAssigner:
    """A rewriter of a method with `resident` values in memory spaces, and copies for readers outside of the space.

    Values in `shared` get copies in memory spaces.
    """

    def __init__(
        self,
        method: MethodDefinition,
        tables: SharedTables,
        spaces: Sequence[int],
        resident: Mapping[int, int],
        shared: Iterable[tuple[int, int]],
        readers: Mapping[int, set[int]],
    ) -> None:
        self._method, self._tables, self._spaces = method, tables, spaces
        self._resident, self._readers = resident, readers
        self._shared = tuple(shared)
        self._copies: dict[int, int] = {}
        self._uploads: dict[tuple[int, int], int] = {}

    def method(self) -> MethodDefinition:
        values = list(self._method.values)
        for index, space in self._resident.items():
            value = values[index]
            if self._readers[index] - {space}:
                self._copies[index] = len(values)
                values.append(Value(f"{value.name} (on the host)", value.dtype, value.shape, UNPLANNED))
            values[index] = value._replace(storage=Storage(StorageKind.ARENA, space, -1))
        for index, space in self._shared:
            self._uploads[index, space] = len(values)
            name = f"{values[index].name} (on the device)"
            values.append(values[index]._replace(name=name, storage=Storage(StorageKind.ARENA, space, -1)))
        used = {*self._resident.values(), *(space for _, space in self._shared)}
        inputs = [i for i, v in enumerate(self._method.values) if v.storage.kind is StorageKind.INPUT]
        return self._method._replace(
            values=tuple(values),
            instructions=(*self._upload(inputs), *self._instructions(self._method.instructions)),
            outputs=tuple(renumber_arg(o, self._on_host) for o in self._method.outputs),
            arenas=(-1,) * (1 + max(used)),
        )

    def _on_host(self, index: int) -> int:
        return self._copies.get(index, index)

    def _reachable(self, index: int, space: int) -> int:
        """Return the index that a delegate of a memory space reads for a value."""
        return index if self._resident.get(index) == space else self._uploads.get((index, space), self._on_host(index))

    def _instructions(self, calls: Iterable[Instruction]) -> tuple[Instruction, ...]:
        produced: list[Instruction] = []
        for call in calls:
            produced.append(self._instruction(call))
            produced += [self._copy(o, self._copies[o]) for o in call.outputs if o in self._copies]
            produced += self._upload(call.outputs)
        return tuple(produced)

    def _upload(self, values: Iterable[int]) -> list[KernelCall]:
        """Return the copies of these values to devices."""
        requested = set(values)
        return [self._copy(self._on_host(i), copy) for (i, _), copy in self._uploads.items() if i in requested]

    def _copy(self, source: int, target: int) -> KernelCall:
        return KernelCall(self._tables.operator(COPY_ACROSS), (Ref(source), None), (target,))

    def _instruction(self, call: Instruction) -> Instruction:
        if isinstance(call, KernelCall):
            return renumber(call, self._on_host)
        if isinstance(call, DelegateCall):
            space = self._spaces[call.delegate]
            return call._replace(inputs=tuple(self._reachable(i, space) for i in call.inputs))
        blocks = tuple(
            Block(b.inputs, tuple(map(self._on_host, b.outputs)), self._instructions(b.instructions))
            for b in call.blocks
        )
        return call._replace(operands=tuple(map(self._on_host, call.operands)), blocks=blocks)


def with_device_copies(report: Report, program: Program, lowered: Iterable[LoweredProgram]) -> Report:
    """Add the copies of every partition on a device to the report; the first partition counts shared copies.

    Args:
        report: The program's report.
        program: emitted.
        lowered: the methods of the program, for the tensors of partitions; dynamic sizes have their values in the
            export.
    """
    if not program.spaces:
        return report
    regions = {name: d.region for part in lowered for name, d in part.delegates.items()}
    partitions, notes = {p.name: p for p in report.partitions}, list(report.notes)
    for method in program.methods:
        calls = list(walk(method.instructions))
        copies = [c for c in calls if isinstance(c, KernelCall) and program.operators[c.operator] == COPY_ACROSS]
        fetched = {i for c in copies for i in reads(c)}
        uploaded = {o for c in copies for o in c.outputs if _stays(method, o)}
        on_device = [c for c in calls if isinstance(c, DelegateCall) and program.delegates[c.delegate].space]
        for call in on_device:
            spec = program.delegates[call.delegate]
            stated = _with_copies(partitions[spec.name], method, call, regions[spec.name], fetched, uploaded)
            uploaded.difference_update(call.inputs)
            partitions[spec.name] = replace(stated, space=program.spaces[spec.space - 1].name)
        if len(on_device) > 1 and depends_on_data(method):
            notes.append(
                f"{method.name}: tensors between partitions pass through the host because sizes depend on data"
            )
    return replace(report, partitions=tuple(partitions.values()), notes=tuple(notes))


def _with_copies(
    partition: PartitionReport,
    method: MethodDefinition,
    call: DelegateCall,
    region: Region,
    fetched: set[int],
    uploaded: set[int],
) -> PartitionReport:
    """Add the copies to one partition; `fetched` values are copied to the host, `uploaded` ones to the device."""
    inputs = list(zip(region.inputs, call.inputs, strict=True))
    outputs = list(zip(region.outputs, call.outputs, strict=True))
    return replace(
        partition,
        copied_in=sum(nbytes(n) for n, i in inputs if i in uploaded or not _stays(method, i)),
        copied_out=sum(nbytes(n) for n, i in outputs if i in fetched or not _stays(method, i)),
        stays=tuple(n.name for n, i in inputs + outputs if _stays(method, i)),
    )


def _stays(method: MethodDefinition, index: int) -> bool:
    storage = method.values[index].storage
    return storage.kind is StorageKind.ARENA and storage.index > 0
