"""Splitting of a method at the sizes and numbers that depend on data.

Between two such places all sizes are known, so each stage is an ordinary method: its inputs are earlier values, its
outputs are values used later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from delegate.errors import ProgramError
from delegate.program.expr import Expr, SymbolSets
from delegate.program.instructions import reads, refs, renumber, renumber_arg, walk
from delegate.program.model import (
    Arg,
    Input,
    Instruction,
    KernelCall,
    MethodDefinition,
    Ref,
    Storage,
    StorageKind,
    StructuredCall,
    Tree,
    Value,
)

_SHARED = (StorageKind.CONSTANT, StorageKind.STATE)  # the same in every stage


class Stage(NamedTuple):
    """A part of a method whose sizes are known when it starts.

    Args:
        method: its instructions, with the symbols of the original method, and its own numbering of values.
        takes: values of the original method that are its inputs, in order.
        gives: values of the original method that are its outputs, in order; empty for the last stage, whose outputs
            belong to the original method.
        call: runs after the stage and allocates its own results, because their sizes depend on data. It has the
            numbers of the original method.
        learns: symbols whose numbers can be read from values after the stage and the call.
        drops: values of the original method that nothing needs any more.
    """

    method: MethodDefinition
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    call: KernelCall | None
    learns: tuple[int, ...]
    drops: tuple[int, ...]


@dataclass(slots=True)
class _Part:
    """A stage before its inputs and outputs are known."""

    instructions: list[Instruction]
    call: KernelCall | None = None
    learns: tuple[int, ...] = ()
    outputs: tuple[Arg, ...] = ()

    def learn(self, symbols: set[int], known: set[int]) -> _Part:
        """Let the numbers of symbols be read after this part, add them to the known ones, and return the part."""
        self.learns += tuple(sorted(symbols))
        known |= symbols
        return self


def split(method: MethodDefinition) -> tuple[Stage, ...]:
    """Return the stages of a method with symbols known only from data.

    Raises:
        ProgramError: a size is used before it is known.
    """
    return tuple(_Stages(method, list(_parts(method))).build())


def used_symbols(method: MethodDefinition) -> tuple[int, ...]:
    """Return the symbols in shapes, arguments, results and guards of a method, in order."""
    sets = SymbolSets()
    symbols = {*sets.of((*method.outputs, *method.guards))}
    for value in method.values:
        symbols |= sets.of(value.shape)
    for call in walk(method.instructions):
        if isinstance(call, KernelCall):
            symbols |= sets.of(call.args)
    return tuple(sorted(symbols))


def depends_on_data(method: MethodDefinition) -> bool:
    """Return True if a method has symbols that the caller's inputs do not determine."""
    return any(s.input < 0 for s in method.symbols)


def _parts(method: MethodDefinition) -> Iterator[_Part]:
    """Cut as late as possible: where a size is made, where a number that was not read yet is needed or could change.

    A number may be read from a state, or a view of one, which has its old content before the first update.
    """
    data_symbols = _DataSymbols(method)
    known = {i for i, s in enumerate(method.symbols) if s.input >= 0}
    available = (i for i, v in enumerate(method.values) if v.storage.kind in (*_SHARED, StorageKind.INPUT))
    unread = data_symbols.elements(available)
    part = _Part([])
    for call in method.instructions:
        new = data_symbols.sizes(call.outputs) - known
        required = data_symbols.find_required(call) - new - known
        updates = any(method.values[i].storage.kind is StorageKind.STATE for i in call.outputs)
        if unread and (required or updates):
            yield part.learn(unread, known)
            part, unread = _Part([]), set()
        _require(required - known, method)
        unread |= data_symbols.elements(call.outputs) - known
        if not new:
            part.instructions.append(call)
            continue
        if not isinstance(call, KernelCall):
            raise ProgramError("only kernels can compute sizes that depend on data", where=f"method {method.name!r}")
        part.call = call
        yield part.learn(new, known).learn(unread, known)
        part, unread = _Part([]), set()
    required = set(data_symbols.sets.of((*method.outputs, *method.guards)) - known)
    if unread and required:
        yield part.learn(unread, known)
        part = _Part([])
    _require(required - known, method)
    part.outputs = method.outputs
    yield part


def _require(unknown: set[int], method: MethodDefinition) -> None:
    for missing in sorted(unknown):
        name = method.symbols[missing].name
        raise ProgramError(f"the number {name} is used before it is known", where=f"method {method.name!r}")


class _DataSymbols:
    """The data-dependent symbols of values and those that instructions need, as sets of `SymbolSets`."""

    def __init__(self, method: MethodDefinition) -> None:
        self.sets = SymbolSets()
        self._values = method.values
        self._sizes: dict[int, set[int]] = defaultdict(set)  # value -> the symbols that are sizes of it
        self._elements: dict[int, set[int]] = defaultdict(set)  # value -> the symbols that are its element
        for index, symbol in enumerate(method.symbols):
            if symbol.input < 0:
                (self._sizes if symbol.dim >= 0 else self._elements)[symbol.value].add(index)

    def sizes(self, values: Iterable[int]) -> set[int]:
        """Return the symbols that are sizes of these values."""
        return {symbol for value in values for symbol in self._sizes.get(value, ())}

    def elements(self, values: Iterable[int]) -> set[int]:
        """Return the symbols that are elements of these values."""
        return {symbol for value in values for symbol in self._elements.get(value, ())}

    def find_required(self, call: Instruction) -> set[int]:
        """Return the symbols in arguments of an instruction and in the shapes of the values that it uses."""
        symbols = set[int]()
        for each in walk((call,)):
            if isinstance(each, KernelCall):
                symbols |= self.sets.of(each.args)
        for index in _touch_values(call):
            symbols |= self.sets.of(self._values[index].shape)
        return symbols


def _touch_values(call: Instruction) -> Iterator[int]:
    """Yield the values that an instruction and its blocks read or make."""
    for each in walk((call,)):
        yield from each.outputs
        yield from reads(each)
        if isinstance(each, StructuredCall):
            for block in each.blocks:
                yield from (*block.inputs, *block.outputs)


class _Stages:
    """Builds the stages: finds the values that pass from part to part."""

    def __init__(self, method: MethodDefinition, parts: list[_Part]) -> None:
        self._method, self._parts = method, parts
        self._kinds = [v.storage.kind for v in method.values]
        self._last: dict[int, int] = {}  # value -> the last part that needs it
        for number, part in enumerate(parts):
            self._last.update(dict.fromkeys(self._needs(part), number))

    def build(self) -> Iterator[Stage]:
        available = {i.value for i in self._method.inputs if i.value >= 0}
        guards = self._guards()
        ends: dict[int, list[int]] = defaultdict(list)  # part -> the values that it is the last to need
        for index, last in self._last.items():
            ends[last].append(index)
        added: Iterable[int] = list(available)
        for number, part in enumerate(self._parts):
            inside = dict.fromkeys(i for c in part.instructions for i in _touch_values(c))
            inside |= dict.fromkeys(refs(part.outputs))
            takes = tuple(i for i in inside if i in available)
            defined = dict.fromkeys(i for i in inside if i not in available and self._kinds[i] not in _SHARED)
            after = {*self._after(part)}
            gives = tuple(i for i in defined if i in after or self._last.get(i, -1) > number)
            outputs: tuple[Arg, ...] = tuple(map(Ref, gives))
            if number == len(self._parts) - 1:
                gives, outputs = (), part.outputs
            added = (*added, *gives, *(part.call.outputs if part.call else ()))
            available.update(added)
            unneeded = (i for i in added if i not in self._last)
            drops = tuple(i for i in dict.fromkeys((*ends[number], *unneeded)) if i in available)
            available.difference_update(drops)
            added = ()
            checked = tuple(guards.get(number, ()))
            yield Stage(self._stage(part, takes, outputs, checked), takes, gives, part.call, part.learns, drops)

    def _guards(self) -> dict[int, list[Expr]]:
        """Return the guards to check in each part: the first in which all their symbols are known."""
        known = dict.fromkeys((i for i, s in enumerate(self._method.symbols) if s.input >= 0), 0)
        for number, part in enumerate(self._parts):
            known.update(dict.fromkeys((i for i in part.learns if i not in known), number + 1))
        guards: dict[int, list[Expr]] = defaultdict(list)
        for guard in self._method.guards:
            guards[max((known[i] for i in guard.free_symbols()), default=0)].append(guard)
        return guards

    def _needs(self, part: _Part) -> Iterator[int]:
        """Yield the values that a part requires."""
        for call in part.instructions:
            yield from _touch_values(call)
        yield from refs(part.outputs)
        yield from self._after(part)

    def _after(self, part: _Part) -> Iterator[int]:
        """Yield the values required after the instructions of a part: by its call, or to read symbols."""
        if part.call:
            yield from refs(part.call.args)
        yield from (self._method.symbols[i].value for i in part.learns)

    def _stage(
        self, part: _Part, takes: tuple[int, ...], outputs: tuple[Arg, ...], guards: tuple[Expr, ...]
    ) -> MethodDefinition:
        local: dict[int, int] = {}

        def number(index: int) -> int:
            return local.setdefault(index, len(local))

        inputs = tuple(Input(self._method.values[i].name, number(i)) for i in takes)
        instructions = tuple(renumber(c, number) for c in part.instructions)
        results = tuple(renumber_arg(o, number) for o in outputs)
        storages = {i: Storage(StorageKind.INPUT, n) for n, i in enumerate(takes)}
        values = tuple(self._unplan(i, storages) for i in local)
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

    def _unplan(self, index: int, storages: dict[int, Storage]) -> Value:
        value = self._method.values[index]
        storage = value.storage if value.storage.kind in _SHARED else Storage(StorageKind.ARENA, 0, -1)
        return value._replace(storage=storages.get(index, storage))
