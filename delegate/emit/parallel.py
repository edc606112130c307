"""Parallel groups of a plan: the calls of their partitions, and the instructions between them, become branches.

States and random numbers depend on the order of instructions, too, not only on values. So no instruction is moved
across one that writes or draws random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from delegate.edge.node import may_draw
from delegate.emit.states import read_by
from delegate.errors import PartitionError
from delegate.kernels.selection import Kernels
from delegate.partitioner.plan import Group, describe_group
from delegate.program.expr import SymbolSets, members
from delegate.program.instructions import refs, walk
from delegate.program.model import (
    Block,
    DelegateCall,
    Instruction,
    KernelCall,
    Method,
    Program,
    StorageKind,
    Structure,
    StructuredCall,
)


def form_parallel_regions(program: Program, method: Method, groups: Iterable[Group], kernels: Kernels) -> Method:
    """Move the partitions of each group into branches that may run in parallel.

    Args:
        program: its delegates have the names of partitions.
        method: without planned memory.
        groups: of the method and the graphs of its control flow.
        kernels: that run the method.

    Raises:
        PartitionError: partitions of a group depend on each other, or are in different graphs.
    """
    for group in groups:
        grouping = _Grouping(program, method, group, kernels)
        results = {*refs(method.outputs), *(s.value for s in method.symbols if s.input < 0)}
        instructions = grouping.apply(method.instructions, results)
        if not grouping.is_done:
            raise _refused(method, group, "they are not in one graph, or already run in parallel with others")
        method = method._replace(instructions=instructions)
    return method


def _refused(method: Method, group: Group, why: str) -> PartitionError:
    remedy = "remove them from `together`, or choose other partitions to run at the same time"
    return PartitionError(
        f"{describe_group(group)} cannot run at the same time: {why}", where=method.name, remedy=remedy
    )


@dataclass(slots=True)
class _Grouping:
    """The search for one group of partitions in the lists of instructions of a method."""

    program: Program
    method: Method
    group: Group
    kernels: Kernels
    is_done: bool = False
    _branch: dict[str, int] = field(init=False)
    _sets: SymbolSets = field(default_factory=SymbolSets)

    def __post_init__(self) -> None:
        self._branch = {name: 1 << number for number, names in enumerate(self.group) for name in names}

    def apply(self, calls: Sequence[Instruction], later: set[int]) -> tuple[Instruction, ...]:
        """Return the instructions with the group in branches, if all its partitions are here or in one block.

        Args:
            calls: of a method or a block.
            later: values that are read after the calls.
        """
        present = {n for call in calls if isinstance(call, DelegateCall) and (n := self._name(call)) in self._branch}
        if present == self._branch.keys():
            self.is_done = True
            return self._with_branches(calls, [self._member(call) for call in calls], later)
        return tuple(map(self._inside, calls))

    def _inside(self, call: Instruction) -> Instruction:
        if not isinstance(call, StructuredCall) or call.kind is Structure.PARALLEL:
            return call
        blocks = (b._replace(instructions=self.apply(b.instructions, {*b.outputs})) for b in call.blocks)
        return call._replace(blocks=tuple(blocks))

    def _name(self, call: DelegateCall) -> str:
        return self.program.delegates[call.delegate].name

    def _member(self, call: Instruction) -> int:
        """Return the plan's branch of a call, as a bit; 0 for none."""
        return self._branch.get(self._name(call), 0) if isinstance(call, DelegateCall) else 0

    def _with_branches(
        self, calls: Sequence[Instruction], own: Sequence[int], later: set[int]
    ) -> tuple[Instruction, ...]:
        before = self._predecessors(calls)
        after, ahead = [0] * len(calls), [0] * len(calls)  # branches that an instruction depends on, that depend on it
        for place, sources in enumerate(before):
            for source in sources:
                after[place] |= after[source] | own[source]
        for place in reversed(range(len(calls))):
            for source in before[place]:
                ahead[source] |= ahead[place] | own[place]
        for place, member in enumerate(own):
            if member and after[place] & ~member:
                raise _refused(self.method, self.group, "one depends on the result of another, or their order matters")
        branch_of = [member or after[p] & ahead[p] for p, member in enumerate(own)]
        first = next(place for place, member in enumerate(branch_of) if member)
        sizes = {s.value for s in self.method.symbols if s.input < 0}
        if any(not sizes.isdisjoint(call.outputs) for call, member in zip(calls, branch_of, strict=True) if member):
            raise _refused(self.method, self.group, "the instructions between them compute a size that depends on data")
        outside = [place for place, member in enumerate(branch_of) if not member]
        early = [p for p in outside if p < first or (ahead[p] and not after[p])]
        late = sorted({*outside}.difference(early))
        blocks = [self._block(calls, branch_of, 1 << number, later) for number in range(len(self.group))]
        outputs = tuple(o for block in blocks for o in block.outputs)
        parallel = StructuredCall(Structure.PARALLEL, (), 0, tuple(blocks), outputs)
        return (*(calls[p] for p in early), parallel, *(calls[p] for p in late))

    def _block(self, calls: Sequence[Instruction], branch_of: Sequence[int], branch: int, later: set[int]) -> Block:
        inside = tuple(call for call, own in zip(calls, branch_of, strict=True) if own == branch)
        read = later.union(*(read_by(call) for call, own in zip(calls, branch_of, strict=True) if own != branch))
        outputs = tuple(o for call in inside for o in call.outputs if o in read)
        return Block((), outputs, inside)

    def _predecessors(self, calls: Sequence[Instruction]) -> list[list[int]]:
        """Return the predecessors of each instruction: the producers of its operands, and the last barrier."""
        producers: dict[int, int] = {}
        predecessors: list[list[int]] = []
        last: list[int] = []  # the last barrier, if there was one
        since: list[int] = []  # all instructions after it
        for place, call in enumerate(calls):
            sources = {producers[index] for index in (*read_by(call), *self._size_values(call)) if index in producers}
            producers.update(dict.fromkeys(call.outputs, place))
            sources.update(last)
            if self._is_barrier(call):
                sources.update(since)
                last, since = [place], []
            else:
                since.append(place)
            predecessors.append(sorted(sources))
        return predecessors

    def _size_values(self, call: Instruction) -> list[int]:
        """Return the values that hold the data-dependent numbers in a call's arguments and sizes."""
        symbols = self.method.symbols
        if all(symbol.input >= 0 for symbol in symbols):
            return []
        symbol_set = 0
        for each in walk((call,)):
            symbol_set |= self._sets.of(each.args) if isinstance(each, KernelCall) else 0
            for index in (*each.outputs, *read_by(each)):
                symbol_set |= self._sets.of(self.method.values[index].shape)
        return [symbols[i].value for i in members(symbol_set) if symbols[i].input < 0]

    def _is_barrier(self, call: Instruction) -> bool:
        """Return if the instruction overwrites a state or input, or draws random numbers."""
        inner = list(walk((call,)))
        written = {self.method.values[o].storage.kind for c in inner for o in c.outputs}
        draws = any(isinstance(c, KernelCall) and self._is_random(c) for c in inner)
        return draws or not written.isdisjoint((StorageKind.STATE, StorageKind.INPUT))

    def _is_random(self, call: KernelCall) -> bool:
        op = self.program.operators[call.operator]
        dtypes = {self.method.values[i].dtype for i in (*refs(call.args), *call.outputs)}
        kernels = (self.kernels.find(op, dtypes, allocates=allocates) for allocates in (False, True))
        return any(k is not None and k.random for k in kernels) and may_draw(_arguments_by_name(op, call.args))


def _arguments_by_name(op: str, args: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; empty for an operator that torch does not have."""
    space, _, name = op.partition(".")
    packet, _, overload = name.rpartition(".")
    try:
        target = getattr(getattr(getattr(torch.ops, space), packet), overload)
    except AttributeError:
        return {}
    return dict(zip((argument.name for argument in target._schema.arguments), args, strict=False))
