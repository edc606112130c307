"""The text form of a program, for people and for golden tests. Equal programs have equal texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from delegate.common.text_table import printable
from delegate.program.dtypes import DType
from delegate.program.expr import UNBOUNDED_BELOW, Dim, Expr, Symbol, shorten
from delegate.program.instructions import DebugInfo
from delegate.program.model import (
    FORMAT_VERSION,
    Arg,
    Constant,
    DelegateCall,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    State,
    Storage,
    StorageKind,
    Structure,
    StructuredCall,
    Tree,
    Value,
)

_BLOCK_NAMES = {
    Structure.IF: ("then", "else"),
    Structure.WHILE: ("condition", "body"),
    Structure.SCAN: ("body",),
    Structure.MAP: ("body",),
}
_BRACKETS = {"tuple": "()", "list": "[]", "dict": "{}", "namedtuple": "()", "record": "()"}


def program_lines(program: Program) -> Iterator[str]:
    """Yield everything in a program except the bytes of its segments, one line per item. The program must be verified.

    Names, source lines, texts and expressions are shortened (see `shorten`): a file may refer to one many times.
    """
    return map(printable, _lines(program))


def _lines(program: Program) -> Iterator[str]:
    yield f"program, format version {FORMAT_VERSION}"
    if size := debug_bytes(program):
        yield f"debug info: {size} bytes"
    yield from _section("constants", (_tensor(i, c, program) for i, c in enumerate(program.constants)))
    yield from _section("states", (_tensor(i, s, program) for i, s in enumerate(program.states)))
    yield from _section("delegates", _delegates(program))
    if program.fallbacks:
        yield f"on fallback: {program.on_fallback}"
    for kind, methods in (("method", program.methods), ("fallback", program.fallbacks)):
        for method in methods:
            yield ""
            yield f"{kind} {method.name}:"
            yield from _MethodText(program, method).lines()


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if not number:
            yield f"{title}:"
        yield f"  {line}"


def _tensor(index: int, tensor: Constant | State, program: Program) -> str:
    size = _bytes(program, tensor.segment)
    return f"#{index} {tensor.name}: {_type(tensor.dtype, tensor.shape)}, segment {tensor.segment}, {size}"


def _delegates(program: Program) -> Iterator[str]:
    sizes = [constant_bytes(program, method) for method in program.fallbacks]
    for index, spec in enumerate(program.delegates):
        specs = json.dumps(dict(spec.compile_specs), sort_keys=True)
        fallback = ""
        if spec.fallback >= 0:
            name = program.fallbacks[spec.fallback].name
            fallback = f", fallback {shorten(name)} with constants of {sizes[spec.fallback]} bytes"
        size = _bytes(program, spec.segment)
        if spec.data:
            size += f" and {sum(memoryview(program.segments[i]).nbytes for i in spec.data)} bytes of data"
        yield f"#{index} {spec.name}: {spec.backend}, segment {spec.segment}, {size}, {specs}{fallback}"


def debug_bytes(program: Program) -> int:
    """Return the size of the debug info in the file of a program; 0 if it has none."""
    from delegate.program.encode import encode_debug_info  # not needed to show a report

    info = DebugInfo.of(program)
    return len(encode_debug_info(info)) if info else 0


def constant_bytes(program: Program, method: MethodDefinition) -> int:
    """Return the size of the constants that a method uses; other methods may share them."""
    used = {v.storage.index for v in method.values if v.storage.kind is StorageKind.CONSTANT}
    return sum(memoryview(program.segments[program.constants[i].segment]).nbytes for i in used)


def _bytes(program: Program, segment: int) -> str:
    return f"{memoryview(program.segments[segment]).nbytes} bytes"


def _type(dtype: DType, shape: Sequence[Dim], names: Sequence[str] = ()) -> str:
    return f"{dtype.name}[{', '.join(_dim(d, names) for d in shape)}]"


def signature(method: MethodDefinition) -> str:
    """Return the name of a method with its inputs, e.g. "forward(x: float32[batch, 3])"."""
    names = [symbol.name for symbol in method.symbols]
    values = [method.values[i.value] if i.value >= 0 else None for i in method.inputs]
    types = [_type(value.dtype, value.shape, names) if value else "number" for value in values]
    return printable(f"{method.name}({', '.join(f'{i.name}: {t}' for i, t in zip(method.inputs, types, strict=True))})")


def _dim(dim: Dim, names: Sequence[str]) -> str:
    """Return a size with the names of its symbols."""
    return str(dim) if isinstance(dim, int) else dim.text(names)


def _refs(indices: Iterable[int]) -> str:
    return ", ".join(f"%{i}" for i in indices)


def _tree(tree: Tree, leaves: Iterator[str]) -> str:
    """Return a tree with its leaves in place."""
    if tree.kind == "leaf":
        return next(leaves)
    parts = [_tree(c, leaves) for c in tree.children]
    if tree.keys:
        named = tree.kind in ("namedtuple", "record")
        parts = [f"{k}={p}" if named else f"{k!r}: {p}" for k, p in zip(tree.keys, parts, strict=True)]
    brackets = _BRACKETS[tree.kind]
    comma = "," if tree.kind == "tuple" and len(parts) == 1 else ""
    return f"{tree.type}{brackets[0]}{', '.join(parts)}{comma}{brackets[1]}"


class _MethodText:
    """The lines of one method."""

    def __init__(self, program: Program, method: MethodDefinition) -> None:
        self._program, self._method = program, method
        self._symbols = [shorten(s.name) for s in method.symbols]
        self._numbers = {s.input: s.name for s in method.symbols if s.dim < 0}

    def lines(self) -> Iterator[str]:
        method = self._method
        yield f"  arguments: {_tree(method.in_tree, map(self._input, range(len(method.inputs))))}"
        yield f"  result: {_tree(method.out_tree, (self._arg(o) for o in method.outputs))}"
        yield f"  arenas: {', '.join(map(self._arena, range(len(method.arenas))))}"
        yield from (f"  symbol {self._symbol(s)}" for s in method.symbols)
        yield from (f"  guard: {_dim(g, self._symbols)}" for g in method.guards)
        yield from (f"  %{i}: {self._value(v)}" for i, v in enumerate(method.values))
        yield from self._instructions(method.instructions, "  ")

    def _arena(self, number: int) -> str:
        size = self._method.arenas[number]
        planned = "planned per shape" if size < 0 else f"{size} bytes"
        if not 0 < number <= len(self._program.spaces):
            return planned
        space = self._program.spaces[number - 1]
        return f"{planned} in memory {shorten(space.name)!r} of {shorten(space.backend)}"

    def _input(self, index: int) -> str:
        leaf = self._method.inputs[index]
        if leaf.value >= 0:
            return f"{leaf.name}=%{leaf.value}"
        return f"{leaf.name}={self._numbers.get(index) or self._arg(leaf.literal)}"

    def _symbol(self, symbol: Symbol) -> str:
        limits = f" in [{symbol.minimum}, {symbol.maximum}]"
        if symbol.maximum is None:
            limits = "" if symbol.minimum == UNBOUNDED_BELOW else f" >= {symbol.minimum}"
        origin = ""
        if symbol.input >= 0 and symbol.dim < 0:
            origin = f" = the number {shorten(self._method.inputs[symbol.input].name)}"
        elif symbol.input >= 0:
            origin = f" = size {symbol.dim} of {shorten(self._method.inputs[symbol.input].name)}"
        elif symbol.value >= 0:
            origin = f" = size {symbol.dim} of %{symbol.value}" if symbol.dim >= 0 else f" = element of %{symbol.value}"
        return f"{symbol.name}{limits}{origin}"

    def _value(self, value: Value) -> str:
        return f"{_type(value.dtype, value.shape, self._symbols)} {self._storage(value.storage)} {value.name}"

    def _storage(self, storage: Storage) -> str:
        if storage.kind is StorageKind.ARENA:
            space = str(storage.index) if storage.index else ""
            return f"arena{space}[{'?' if storage.offset < 0 else storage.offset}]"
        if storage.kind is StorageKind.ALIAS:
            return f"alias of %{storage.index}"
        return f"{storage.kind.name.lower()} #{storage.index}"

    def _instructions(self, instructions: Iterable[Instruction], indent: str) -> Iterator[str]:
        for call in instructions:
            results = f"{_refs(call.outputs)} = " if call.outputs else ""
            if isinstance(call, StructuredCall):
                counts = {"carried": call.carried, "sequences": call.sequences}
                inputs = ", ".join([_refs(call.operands), *(f"{name}={n}" for name, n in counts.items() if n)])
                yield f"{indent}{results}{call.kind.name.lower()}({inputs})"
                yield from self._blocks(call, f"{indent}  ")
            else:
                yield f"{indent}{results}{self._call(call)}"

    def _call(self, call: KernelCall | DelegateCall) -> str:
        if isinstance(call, DelegateCall):
            return f"delegate {shorten(self._program.delegates[call.delegate].name)}({_refs(call.inputs)})"
        source = f"  # {shorten(self._method.sources[call.source])}" if call.source >= 0 else ""
        args = ", ".join(self._arg(a) for a in call.args)
        return f"{shorten(self._program.operators[call.operator])}({args}){source}"

    def _blocks(self, call: StructuredCall, indent: str) -> Iterator[str]:
        for name, block in zip(_BLOCK_NAMES[call.kind], call.blocks, strict=True):
            yield f"{indent}{name}({_refs(block.inputs)}):"
            yield from self._instructions(block.instructions, f"{indent}  ")
            yield f"{indent}  yield {_refs(block.outputs)}"

    def _arg(self, arg: Arg) -> str:
        if isinstance(arg, Ref):
            return f"%{arg.index}"
        if isinstance(arg, Expr):
            return _dim(arg, self._symbols)
        if isinstance(arg, tuple):
            return f"[{', '.join(self._arg(a) for a in arg)}]"
        return repr(shorten(arg) if isinstance(arg, str) else arg)
