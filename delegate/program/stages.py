"""Sizes and numbers that depend on data: a method split where it makes them.

Between two such places everything is known, so that each stage is an ordinary method: what was made before are its
inputs, what is used later its outputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from delegate.errors import ProgramError
from delegate.program.blocks import walk
from delegate.program.expr import Expr, SymbolSets, members, set_of
from delegate.program.lifetimes import reads, refs
from delegate.program.model import (
    Arg,
    Input,
    Instruction,
    KernelCall,
    Method,
    Ref,
    Storage,
    StorageKind,
    StructuredCall,
    Tree,
    Value,
)
from delegate.program.renumber import renumbered, renumbered_arg

_KEPT = (StorageKind.CONSTANT, StorageKind.STATE)  # homes that are the same in every stage


class Stage(NamedTuple):
    """A part of a method whose sizes are known when it starts.

    Args:
        method: its instructions. Symbols are those of the whole method, values are numbered anew.
        takes: values of the whole method that are its inputs, in order.
        gives: values of the whole method that are its outputs, in order; empty for the last stage, whose outputs are
            those of the whole method.
        call: runs after it and makes its results itself, for their sizes depend on data; in the numbers of the whole.
        learns: symbols whose numbers can be read off values once all that has run.
        drops: values of the whole method that nothing needs any more.
    """

    method: Method
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    call: KernelCall | None
    learns: tuple[int, ...]
    drops: tuple[int, ...]


@dataclass(slots=True)
class _Part:
    """A stage before it is known what goes in and out."""

    instructions: list[Instruction]
    call: KernelCall | None = None
    learns: tuple[int, ...] = ()
    outputs: tuple[Arg, ...] = ()


def split(method: Method) -> tuple[Stage, ...]:
    """The stages of a method that has symbols known only from data.

    Raises:
        ProgramError: a size is used before it is known.
    """
    return tuple(_Stages(method, list(_parts(method))).made())


def used_symbols(method: Method) -> tuple[int, ...]:
    """The symbols that shapes, arguments, results and guards of a method hold, in order."""
    sets = SymbolSets()
    found = sets.of((*method.outputs, *method.guards))
    for value in method.values:
        found |= sets.of(value.shape)
    for call in walk(method.instructions):
        if isinstance(call, KernelCall):
            found |= sets.of(call.args)
    return members(found)


def depends_on_data(method: Method) -> bool:
    """Whether a method has symbols that the caller's inputs do not tell."""
    return any(s.input < 0 for s in method.symbols)


def _parts(method: Method) -> Iterator[_Part]:
    """Cut as late as possible: where a size is made, where a number is wanted that was not read yet, or could change.

    A number may be read off a state, or a view of one, which has its old content before the first update.
    """
    told = _Told(method)
    known = set_of(i for i, s in enumerate(method.symbols) if s.input >= 0)
    there = (i for i, v in enumerate(method.values) if v.storage.kind in (*_KEPT, StorageKind.INPUT))
    readable = told.elements(there)
    part = _Part([])
    for call in method.instructions:
        new = told.sizes(call.outputs) & ~known
        wanted = told.wanted(call) & ~new
        unread = readable & ~known
        updates = any(method.values[i].storage.kind is StorageKind.STATE for i in call.outputs)
        if wanted & ~known or (updates and unread):
            part.learns = members(unread)
            known |= unread
            yield part
            part = _Part([])
        _require(wanted & ~known, method)
        readable |= told.elements(call.outputs)
        if not new:
            part.instructions.append(call)
            continue
        if not isinstance(call, KernelCall):
            raise ProgramError("only kernels make sizes that depend on data", where=f"method {method.name!r}")
        unread = readable & ~known
        part.call, part.learns = call, (*members(new), *members(unread))
        known |= new | unread
        yield part
        part = _Part([])
    wanted = told.sets.of((*method.outputs, *method.guards))
    if wanted & ~known:
        unread = readable & ~known
        part.learns = members(unread)
        known |= unread
        yield part
        part = _Part([])
    _require(wanted & ~known, method)
    part.outputs = method.outputs
    yield part


def _require(unknown: int, method: Method) -> None:
    for missing in members(unknown):
        name = method.symbols[missing].name
        raise ProgramError(f"the number {name} is used before it is known", where=f"method {method.name!r}")


class _Told:
    """Which symbols values tell, and which ones instructions want, as sets of `SymbolSets`."""

    def __init__(self, method: Method) -> None:
        self.sets = SymbolSets()
        self._values = method.values
        self._sizes: dict[int, int] = {}  # value -> the symbols that are sizes of it
        self._elements: dict[int, int] = {}  # value -> the symbols that are its element
        for index, symbol in enumerate(method.symbols):
            if symbol.input < 0:
                found = self._sizes if symbol.dim >= 0 else self._elements
                found[symbol.value] = found.get(symbol.value, 0) | 1 << index

    def sizes(self, values: Iterable[int]) -> int:
        """The symbols that are sizes of these values."""
        return _union(self._sizes, values)

    def elements(self, values: Iterable[int]) -> int:
        """The symbols that are elements of these values."""
        return _union(self._elements, values)

    def wanted(self, call: Instruction) -> int:
        """The symbols in arguments of an instruction and in the shapes of what it touches."""
        found = 0
        for each in walk((call,)):
            if isinstance(each, KernelCall):
                found |= self.sets.of(each.args)
        for index in _touched(call):
            found |= self.sets.of(self._values[index].shape)
        return found


def _union(sets: Mapping[int, int], values: Iterable[int]) -> int:
    found = 0
    for value in values:
        found |= sets.get(value, 0)
    return found


def _touched(call: Instruction) -> Iterator[int]:
    """The values that an instruction and its blocks read or make."""
    for each in walk((call,)):
        yield from each.outputs
        yield from reads(each)
        if isinstance(each, StructuredCall):
            for block in each.blocks:
                yield from (*block.inputs, *block.outputs)


class _Stages:
    """Finds what goes from part to part."""

    def __init__(self, method: Method, parts: list[_Part]) -> None:
        self._method, self._parts = method, parts
        self._home = [v.storage.kind for v in method.values]
        self._last: dict[int, int] = {}  # value -> the last part that needs it
        for number, part in enumerate(parts):
            self._last.update(dict.fromkeys(self._needs(part), number))

    def made(self) -> Iterator[Stage]:
        there = {i.value for i in self._method.inputs if i.value >= 0}
        guards = self._guards()
        ends: dict[int, list[int]] = defaultdict(list)  # part -> the values that it is the last to need
        for index, last in self._last.items():
            ends[last].append(index)
        added: Iterable[int] = list(there)
        for number, part in enumerate(self._parts):
            inside = dict.fromkeys(i for c in part.instructions for i in _touched(c))
            inside |= dict.fromkeys(refs(part.outputs))
            takes = tuple(i for i in inside if i in there)
            made = dict.fromkeys(i for i in inside if i not in there and self._home[i] not in _KEPT)
            after = {*self._after(part)}
            gives = tuple(i for i in made if i in after or self._last.get(i, -1) > number)
            outputs: tuple[Arg, ...] = tuple(map(Ref, gives))
            if number == len(self._parts) - 1:
                gives, outputs = (), part.outputs
            added = (*added, *gives, *(part.call.outputs if part.call else ()))
            there.update(added)
            unneeded = (i for i in added if i not in self._last)
            drops = tuple(i for i in dict.fromkeys((*ends[number], *unneeded)) if i in there)
            there.difference_update(drops)
            added = ()
            checked = tuple(guards.get(number, ()))
            yield Stage(self._stage(part, takes, outputs, checked), takes, gives, part.call, part.learns, drops)

    def _guards(self) -> dict[int, list[Expr]]:
        """Part -> the guards of which all symbols are known when it begins, and not before."""
        known = dict.fromkeys((i for i, s in enumerate(self._method.symbols) if s.input >= 0), 0)
        for number, part in enumerate(self._parts):
            known.update(dict.fromkeys((i for i in part.learns if i not in known), number + 1))
        found: dict[int, list[Expr]] = defaultdict(list)
        for guard in self._method.guards:
            found[max((known[i] for i in guard.free_symbols()), default=0)].append(guard)
        return found

    def _needs(self, part: _Part) -> Iterator[int]:
        """The values that must be there for a part."""
        for call in part.instructions:
            yield from _touched(call)
        yield from refs(part.outputs)
        yield from self._after(part)

    def _after(self, part: _Part) -> Iterator[int]:
        """The values that are needed once the instructions of a part have run: by its call, or to read symbols."""
        if part.call:
            yield from refs(part.call.args)
        yield from (self._method.symbols[i].value for i in part.learns)

    def _stage(self, part: _Part, takes: tuple[int, ...], outputs: tuple[Arg, ...], guards: tuple[Expr, ...]) -> Method:
        local: dict[int, int] = {}

        def number(index: int) -> int:
            return local.setdefault(index, len(local))

        inputs = tuple(Input(self._method.values[i].name, number(i)) for i in takes)
        instructions = tuple(renumbered(c, number) for c in part.instructions)
        results = tuple(renumbered_arg(o, number) for o in outputs)
        storages = {i: Storage(StorageKind.INPUT, n) for n, i in enumerate(takes)}
        values = tuple(self._unplanned(i, storages) for i in local)
        nothing = Tree("tuple", (), (Tree("tuple"), Tree("dict")))
        return self._method._replace(
            inputs=inputs,
            outputs=results,
            in_tree=nothing,
            out_tree=nothing,
            values=values,
            instructions=instructions,
            arenas=(-1,),
            guards=guards,
        )

    def _unplanned(self, index: int, storages: dict[int, Storage]) -> Value:
        value = self._method.values[index]
        kept = value.storage if value.storage.kind in _KEPT else Storage(StorageKind.ARENA, 0, -1)
        return value._replace(storage=storages.get(index, kept))
