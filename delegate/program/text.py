"""The text form of a program, for people and for golden tests. Equal programs give equal texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from delegate.program.dtypes import DType
from delegate.program.expr import Dim, Expr
from delegate.program.model import (
    UNBOUNDED_BELOW,
    Arg,
    Constant,
    DelegateCall,
    DelegateSpec,
    Home,
    Instruction,
    KernelCall,
    Method,
    Program,
    Ref,
    State,
    Storage,
    Structure,
    StructuredCall,
    Symbol,
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


def format_program(program: Program) -> str:
    """Everything in a program but the bytes of its segments, a line for each thing. The program must be verified."""
    lines = [f"program, format version {program.version}"]
    lines += _section("constants", (_tensor(i, c, program) for i, c in enumerate(program.constants)))
    lines += _section("states", (_tensor(i, s, program) for i, s in enumerate(program.states)))
    lines += _section("delegates", _delegates(program))
    if program.fallbacks:
        lines.append(f"on fallback: {program.on_fallback}")
    for kind, methods in (("method", program.methods), ("fallback", program.fallbacks)):
        for method in methods:
            lines += ["", f"{kind} {method.name}:", *_MethodText(program, method).lines()]
    return "\n".join(map(_printable, lines)) + "\n"


def _printable(line: str) -> str:
    """The line with escapes for control characters, which names in a foreign file may hold."""
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _section(title: str, lines: Iterable[str]) -> list[str]:
    inner = [f"  {line}" for line in lines]
    return [f"{title}:", *inner] if inner else []


def _tensor(index: int, tensor: Constant | State, program: Program) -> str:
    size = _bytes(program, tensor.segment)
    return f"#{index} {tensor.name}: {_type(tensor.dtype, tensor.shape)}, segment {tensor.segment}, {size}"


def _delegates(program: Program) -> Iterator[str]:
    for index, spec in enumerate(program.delegates):
        specs = json.dumps(dict(spec.compile_specs), sort_keys=True)
        size = _bytes(program, spec.segment)
        yield f"#{index} {spec.name}: {spec.backend}, segment {spec.segment}, {size}, {specs}{_fallback(program, spec)}"


def _fallback(program: Program, spec: DelegateSpec) -> str:
    if spec.fallback < 0:
        return ""
    method = program.fallbacks[spec.fallback]
    return f", fallback {method.name} with constants of {constant_bytes(program, method)} bytes"


def constant_bytes(program: Program, method: Method) -> int:
    """The size of the constants that a method uses, which it may share with others."""
    used = {v.storage.index for v in method.values if v.storage.home is Home.CONSTANT}
    return sum(memoryview(program.segments[program.constants[i].segment]).nbytes for i in used)


def _bytes(program: Program, segment: int) -> str:
    return f"{memoryview(program.segments[segment]).nbytes} bytes"


def _type(dtype: DType, shape: Sequence[Dim], symbols: Sequence[Symbol] = ()) -> str:
    return f"{dtype.name}[{', '.join(_dim(d, symbols) for d in shape)}]"


def _dim(dim: Dim, symbols: Sequence[Symbol]) -> str:
    """A size with the names of its symbols; `Expr` itself knows only their numbers."""
    return str(dim) if isinstance(dim, int) else dim.text([s.name for s in symbols])


def _refs(indices: Iterable[int]) -> str:
    return ", ".join(f"%{i}" for i in indices)


def _tree(tree: Tree, leaves: Iterator[str]) -> str:
    """A tree with its leaves in place."""
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

    def __init__(self, program: Program, method: Method) -> None:
        self._program, self._method = program, method

    def lines(self) -> list[str]:
        method = self._method
        return [
            f"  arguments: {_tree(method.in_tree, map(self._input, range(len(method.inputs))))}",
            f"  result: {_tree(method.out_tree, (self._arg(o) for o in method.outputs))}",
            f"  arenas: {', '.join(map(self._arena, range(len(method.arenas))))}",
            *(f"  symbol {self._symbol(s)}" for s in method.symbols),
            *(f"  guard: {_dim(g, method.symbols)}" for g in method.guards),
            *(f"  %{i}: {self._value(v)}" for i, v in enumerate(method.values)),
            *self._instructions(method.instructions, "  "),
        ]

    def _arena(self, number: int) -> str:
        size = self._method.arenas[number]
        planned = "planned per shape" if size < 0 else f"{size} bytes"
        if not 0 < number <= len(self._program.spaces):
            return planned
        space = self._program.spaces[number - 1]
        return f"{planned} in memory {space.name!r} of {space.backend}"

    def _input(self, index: int) -> str:
        leaf = self._method.inputs[index]
        numbers = {s.input: s.name for s in self._method.symbols if s.dim < 0}
        return f"{leaf.name}={f'%{leaf.value}' if leaf.value >= 0 else numbers.get(index, repr(leaf.literal))}"

    def _symbol(self, symbol: Symbol) -> str:
        limits = f" in [{symbol.minimum}, {symbol.maximum}]"
        if symbol.maximum is None:
            limits = "" if symbol.minimum == UNBOUNDED_BELOW else f" >= {symbol.minimum}"
        origin = ""
        if symbol.input >= 0 and symbol.dim < 0:
            origin = f" = the number {self._method.inputs[symbol.input].name}"
        elif symbol.input >= 0:
            origin = f" = size {symbol.dim} of {self._method.inputs[symbol.input].name}"
        elif symbol.value >= 0:
            origin = f" = size {symbol.dim} of %{symbol.value}" if symbol.dim >= 0 else f" = element of %{symbol.value}"
        return f"{symbol.name}{limits}{origin}"

    def _value(self, value: Value) -> str:
        return f"{_type(value.dtype, value.shape, self._method.symbols)} {self._storage(value.storage)} {value.name}"

    def _storage(self, storage: Storage) -> str:
        if storage.home is Home.ARENA:
            space = str(storage.index) if storage.index else ""
            return f"arena{space}[{'?' if storage.offset < 0 else storage.offset}]"
        if storage.home is Home.ALIAS:
            return f"alias of %{storage.index}"
        return f"{storage.home.name.lower()} #{storage.index}"

    def _instructions(self, instructions: Iterable[Instruction], indent: str) -> Iterator[str]:
        for call in instructions:
            results = f"{_refs(call.outputs)} = " if call.outputs else ""
            if isinstance(call, StructuredCall):
                counts = {"carried": call.carried, "sequences": call.sequences}
                given = ", ".join([_refs(call.operands), *(f"{name}={n}" for name, n in counts.items() if n)])
                yield f"{indent}{results}{call.kind.name.lower()}({given})"
                yield from self._blocks(call, f"{indent}  ")
            else:
                yield f"{indent}{results}{self._call(call)}"

    def _call(self, call: KernelCall | DelegateCall) -> str:
        if isinstance(call, DelegateCall):
            return f"delegate {self._program.delegates[call.delegate].name}({_refs(call.inputs)})"
        source = f"  # {self._method.sources[call.source]}" if call.source >= 0 else ""
        args = ", ".join(self._arg(a) for a in call.args)
        return f"{self._program.operators[call.operator]}({args}){source}"

    def _blocks(self, call: StructuredCall, indent: str) -> Iterator[str]:
        for name, block in zip(_BLOCK_NAMES[call.kind], call.blocks, strict=True):
            yield f"{indent}{name}({_refs(block.inputs)}):"
            yield from self._instructions(block.instructions, f"{indent}  ")
            yield f"{indent}  give {_refs(block.outputs)}"

    def _arg(self, arg: Arg) -> str:
        if isinstance(arg, Ref):
            return f"%{arg.index}"
        if isinstance(arg, Expr):
            return _dim(arg, self._method.symbols)
        if isinstance(arg, tuple):
            return f"[{', '.join(self._arg(a) for a in arg)}]"
        return repr(arg)
