"""Partitions that the plan has run at the same time: their calls, and what stands between them, become branches.

Order says more than the values that go from one instruction to another: the content of states and random numbers depend
on it too. So nothing is moved across what writes or draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from delegate.edge.node import may_draw
from delegate.emit.states import read_by
from delegate.errors import PartitionError
from delegate.partitioner.plan import Group
from delegate.partitioner.together import named
from delegate.program.blocks import walk
from delegate.program.expr import SymbolSets, members
from delegate.program.lifetimes import refs
from delegate.program.model import (
    Block,
    DelegateCall,
    Home,
    Instruction,
    KernelCall,
    Method,
    Program,
    Structure,
    StructuredCall,
)
from delegate.runtime.kernels import Kernels


def run_together(program: Program, method: Method, groups: Iterable[Group], kernels: Kernels) -> Method:
    """The method with the partitions of each group in branches that may run at the same time.

    Args:
        program: whose delegates have the names of partitions.
        method: its memory not planned yet.
        groups: of the method and the graphs of its control flow.
        kernels: that it runs on.

    Raises:
        PartitionError: partitions of a group need one another, or stand in different graphs.
    """
    for group in groups:
        made = _Grouping(program, method, group, kernels)
        results = {*refs(method.outputs), *(s.value for s in method.symbols if s.input < 0)}
        instructions = made.grouped(method.instructions, results)
        if not made.is_done:
            raise _refused(method, group, "they are not in one graph, or run beside others already")
        method = method._replace(instructions=instructions)
    return method


def _refused(method: Method, group: Group, why: str) -> PartitionError:
    remedy = "leave them out of `together`, or have other partitions run at the same time"
    return PartitionError(f"{named(group)} cannot run at the same time: {why}", where=method.name, remedy=remedy)


@dataclass(slots=True)
class _Grouping:
    """One group of partitions, looked for in the lists of instructions of a method."""

    program: Program
    method: Method
    group: Group
    kernels: Kernels
    is_done: bool = False
    _branch: dict[str, int] = field(init=False)
    _sets: SymbolSets = field(default_factory=SymbolSets)

    def __post_init__(self) -> None:
        self._branch = {name: 1 << number for number, names in enumerate(self.group) for name in names}

    def grouped(self, calls: Sequence[Instruction], later: set[int]) -> tuple[Instruction, ...]:
        """The instructions with the group in branches, if its partitions stand here or in a block of control flow.

        Args:
            calls: of a method or a block.
            later: values that are read behind them.
        """
        present = {n for call in calls if isinstance(call, DelegateCall) and (n := self._name(call)) in self._branch}
        if present == self._branch.keys():
            self.is_done = True
            return self._with_branches(calls, [self._member(call) for call in calls], later)
        return tuple(map(self._inside, calls))

    def _inside(self, call: Instruction) -> Instruction:
        if not isinstance(call, StructuredCall) or call.kind is Structure.PARALLEL:
            return call
        blocks = (b._replace(instructions=self.grouped(b.instructions, {*b.outputs})) for b in call.blocks)
        return call._replace(blocks=tuple(blocks))

    def _name(self, call: DelegateCall) -> str:
        return self.program.delegates[call.delegate].name

    def _member(self, call: Instruction) -> int:
        """The branch that a call is in as the plan has it, as a bit; 0 for none."""
        return self._branch.get(self._name(call), 0) if isinstance(call, DelegateCall) else 0

    def _with_branches(
        self, calls: Sequence[Instruction], own: Sequence[int], later: set[int]
    ) -> tuple[Instruction, ...]:
        before = self._predecessors(calls)
        behind, ahead = [0] * len(calls), [0] * len(calls)  # the branches that an instruction is behind, ahead of
        for place, sources in enumerate(before):
            for source in sources:
                behind[place] |= behind[source] | own[source]
        for place in reversed(range(len(calls))):
            for source in before[place]:
                ahead[source] |= ahead[place] | own[place]
        for place, member in enumerate(own):
            if member and behind[place] & ~member:
                raise _refused(self.method, self.group, "one needs what another makes, or their order matters")
        home = [member or behind[p] & ahead[p] for p, member in enumerate(own)]
        first = next(place for place, member in enumerate(home) if member)
        told = {s.value for s in self.method.symbols if s.input < 0}
        if any(not told.isdisjoint(call.outputs) for call, member in zip(calls, home, strict=True) if member):
            raise _refused(self.method, self.group, "what stands between them tells a size that depends on data")
        outside = [place for place, member in enumerate(home) if not member]
        early = [p for p in outside if p < first or (ahead[p] and not behind[p])]
        late = sorted({*outside}.difference(early))
        blocks = [self._block(calls, home, 1 << number, later) for number in range(len(self.group))]
        outputs = tuple(o for block in blocks for o in block.outputs)
        parallel = StructuredCall(Structure.PARALLEL, (), 0, tuple(blocks), outputs)
        return (*(calls[p] for p in early), parallel, *(calls[p] for p in late))

    def _block(self, calls: Sequence[Instruction], home: Sequence[int], branch: int, later: set[int]) -> Block:
        inside = tuple(call for call, own in zip(calls, home, strict=True) if own == branch)
        read = later.union(*(read_by(call) for call, own in zip(calls, home, strict=True) if own != branch))
        outputs = tuple(o for call in inside for o in call.outputs if o in read)
        return Block((), outputs, inside)

    def _predecessors(self, calls: Sequence[Instruction]) -> list[list[int]]:
        """By instruction, those that must run before it: what makes its operands, and what no other may pass."""
        made: dict[int, int] = {}
        found: list[list[int]] = []
        last: list[int] = []  # the last instruction that none may pass, if there was one
        since: list[int] = []  # and all behind it
        for place, call in enumerate(calls):
            sources = {made[index] for index in (*read_by(call), *self._told_by(call)) if index in made}
            made.update(dict.fromkeys(call.outputs, place))
            sources.update(last)
            if self._keeps_its_place(call):
                sources.update(since)
                last, since = [place], []
            else:
                since.append(place)
            found.append(sorted(sources))
        return found

    def _told_by(self, call: Instruction) -> list[int]:
        """The values that tell the numbers in its arguments and sizes, where these depend on data."""
        symbols = self.method.symbols
        if all(symbol.input >= 0 for symbol in symbols):
            return []
        wanted = 0
        for each in walk((call,)):
            wanted |= self._sets.of(each.args) if isinstance(each, KernelCall) else 0
            for index in (*each.outputs, *read_by(each)):
                wanted |= self._sets.of(self.method.values[index].shape)
        return [symbols[i].value for i in members(wanted) if symbols[i].input < 0]

    def _keeps_its_place(self, call: Instruction) -> bool:
        """Whether it writes what was there before, or draws random numbers."""
        inner = list(walk((call,)))
        written = {self.method.values[o].storage.home for c in inner for o in c.outputs}
        draws = any(isinstance(c, KernelCall) and self._is_random(c) for c in inner)
        return draws or not written.isdisjoint((Home.STATE, Home.INPUT))

    def _is_random(self, call: KernelCall) -> bool:
        op = self.program.operators[call.operator]
        dtypes = {self.method.values[i].dtype for i in (*refs(call.args), *call.outputs)}
        found = (self.kernels.find(op, dtypes, allocates=allocates) for allocates in (False, True))
        return any(kernel is not None and kernel.random for kernel in found) and may_draw(_named(op, call.args))


def _named(op: str, args: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a call by name; none of an operator that torch does not have."""
    space, _, name = op.partition(".")
    packet, _, overload = name.rpartition(".")
    try:
        target = getattr(getattr(getattr(torch.ops, space), packet), overload)
    except AttributeError:
        return {}
    return dict(zip((argument.name for argument in target._schema.arguments), args, strict=False))
