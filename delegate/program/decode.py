"""Reading of a program from the FlatBuffers tables of a file. The tables are untrusted.

FlatBuffers for Python checks nothing, so an access outside the buffer or an unknown code becomes a ProgramError in one
place, `decode`. Two more rules stop a forged file from running forever. Nesting is limited (see `model`). All reads
are charged to a budget of as many bytes as the tables have. Tables that `encode` wrote share no parts, so they stay
within the budget; tables that refer to one part many times do not.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from delegate.errors import ProgramError
from delegate.program import schema_generated as schema
from delegate.program.dtypes import DType
from delegate.program.expr import LEAVES, Dim, Expr, Op, Symbol, operands
from delegate.program.instructions import DebugInfo
from delegate.program.model import (
    MAX_ALL_EXPR_NODES,
    MAX_DEPTH,
    MAX_EXPR_NODES,
    MAX_NAME,
    MAX_SPEC_PARTS,
    MAX_SPECS,
    MAX_TEXT,
    Arg,
    Block,
    Constant,
    DelegateCall,
    DelegateSpec,
    Input,
    Instruction,
    KernelCall,
    MemorySpace,
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
    check_name,
)
from delegate.program.schema_generated import ArgKind
from delegate.program.segments import DIGEST_SIZE, Directory

T = TypeVar("T")
_ITEM_BYTES = 8  # at least, of an entry of a vector of tables or texts with what it refers to
_DTYPES = {t.value: t for t in DType}
_OPS = {o.value: o for o in Op}
_DOUBLE, _LONG = struct.Struct("<d"), struct.Struct("<q")
_STORAGE_KINDS = {h.value: h for h in StorageKind}
_STRUCTURES = {s.value: s for s in Structure}
_TREE_KINDS = {code: name for name, code in vars(schema.TreeKind).items() if not name.startswith("_")}

_FORGED = {RecursionError: "too deeply nested", MemoryError: "too large", StopIteration: "too short"}


def decode(tables: memoryview) -> tuple[Program, Directory]:
    """Return the program without its segments and debug info, and the directory of the segments.

    Args:
        tables: as `encode` wrote them, or anything.

    Raises:
        ProgramError: the tables are not what `encode` writes.
    """
    return _decode_table(lambda: _Decoder(tables).program())


def decode_debug_info(segment: memoryview) -> DebugInfo:
    """Return the debug info of a segment, of which the reader reads no byte twice; raise ProgramError if it is none."""
    return _decode_table(lambda: _Decoder(segment).debug_info())


def _decode_table(decoder: Callable[[], T]) -> T:
    try:
        return decoder()
    except (struct.error, LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        problem = f"the tables of the file are damaged: {type(error).__name__}: {error}"
        raise ProgramError(problem, remedy="copy the file again, or lower the model again") from error
    except (RecursionError, MemoryError, StopIteration) as error:
        problem = f"the tables of the file are forged: {_FORGED[type(error)]}"
        raise ProgramError(problem, remedy="do not use this file") from error


class _Decoder:
    """Reads tables; in messages and methods `item` is a table of the generated reader."""

    def __init__(self, tables: memoryview) -> None:
        self._tables = tables
        self._budget = tables.nbytes
        self._expr_nodes = self._specs = self._spec_parts = 0  # of the whole file

    def program(self) -> tuple[Program, Directory]:
        if not schema.Program.ProgramBufferHasIdentifier(self._tables, 0):
            raise ValueError("the identifier DLG1 is missing")
        item = schema.Program.GetRootAs(self._tables, 0)
        program = Program(
            methods=tuple(self._method(m) for m in self._items(item, "Methods")),
            operators=self._texts(item, "Operators"),
            constants=tuple(Constant(*self._tensor(c)) for c in self._items(item, "Constants")),
            states=tuple(State(*self._tensor(s)) for s in self._items(item, "States")),
            delegates=tuple(self._delegate(d) for d in self._items(item, "Delegates")),
            segments=(),
            fallbacks=tuple(self._method(m) for m in self._items(item, "Fallbacks")),
            on_fallback=self._text(item.OnFallback()),
            spaces=tuple(self._space(s) for s in self._items(item, "Spaces")),
            load_rules=self._text(item.LoadRules(), MAX_SPECS),
        )
        return program, self._directory(item.Segments())

    def debug_info(self) -> DebugInfo:
        if not schema.DebugInfo.DebugInfoBufferHasIdentifier(self._tables, 0):
            raise ValueError("the identifier DLG1 is missing")
        item = schema.DebugInfo.GetRootAs(self._tables, 0)
        return DebugInfo(
            self._text(item.Report()),
            tuple(self._texts(m, "Sources", MAX_TEXT) for m in self._items(item, "Methods")),
            tuple(self._texts(m, "Sources", MAX_TEXT) for m in self._items(item, "Fallbacks")),
        )

    def _spend(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            raise ValueError("elements are longer than the file, or used more than once")

    def _items(self, item: Any, field: str) -> Iterator[Any]:
        """Return the tables in a vector of tables, or its texts."""
        count = getattr(item, f"{field}Length")()
        self._spend(_ITEM_BYTES * count)
        return map(getattr(item, field), range(count))

    def _numbers(self, item: Any, field: str) -> tuple[int, ...]:
        """Return a vector of numbers."""
        if not getattr(item, f"{field}Length")():
            return ()
        vector = getattr(item, f"{field}AsNumpy")()
        self._spend(vector.nbytes)
        return tuple(vector.tolist())

    def _bytes(self, item: Any, field: str) -> bytes:
        """Return a vector of bytes, which takes an eighth of a tuple's memory as a bytes object."""
        if not getattr(item, f"{field}Length")():
            return b""
        vector = getattr(item, f"{field}AsNumpy")()
        self._spend(vector.nbytes)
        return bytes(vector)

    def _text(self, data: bytes | None, most: int | None = None) -> str:
        """Return a text; raise ProgramError if it has more than `most` bytes."""
        if data is None:
            return ""
        self._spend(len(data))
        if most is not None:
            check_name(data, most)
        return data.decode()

    def _name(self, data: bytes | None) -> str:
        return self._text(data, MAX_NAME)

    def _texts(self, item: Any, field: str, most: int = MAX_NAME) -> tuple[str, ...]:
        return tuple(self._text(t, most) for t in self._items(item, field))

    def _directory(self, item: Any) -> Directory:
        offsets, sizes = self._numbers(item, "Offsets"), self._numbers(item, "Sizes")
        digests = self._bytes(item, "Sha256")
        if not len(offsets) == len(sizes) == len(digests) / DIGEST_SIZE:
            raise ValueError("the directory of the segments is incomplete")
        starts = range(0, len(digests), DIGEST_SIZE)
        if item.Debug() and not offsets:
            raise ValueError("the segment of the debug info is missing")
        return Directory(offsets, sizes, tuple(digests[i : i + DIGEST_SIZE] for i in starts), item.Debug())

    def _tensor(self, item: Any) -> tuple[str, DType, tuple[int, ...], int]:
        return self._name(item.Name()), _DTYPES[item.Dtype()], self._numbers(item, "Shape"), item.Segment()

    def _space(self, item: Any) -> MemorySpace:
        return MemorySpace(self._name(item.Backend()), self._name(item.Name()))

    def _delegate(self, item: Any) -> DelegateSpec:
        text = self._text(item.CompileSpecs())
        self._specs += len(text)
        self._spec_parts += sum(map(text.count, ",[{"))
        if self._specs > MAX_SPECS or self._spec_parts > MAX_SPEC_PARTS:
            raise ValueError("the compile specs are too large")
        specs = json.loads(text, parse_constant=_reject_constant)
        if not isinstance(specs, dict):
            raise ValueError("compile specs are not a JSON object")
        name, backend = self._name(item.Name()), self._name(item.Backend())
        data = self._numbers(item, "Data")
        return DelegateSpec(name, backend, item.Segment(), specs, item.Fallback(), item.Space(), data)

    def _method(self, item: Any) -> MethodDefinition:
        table = item.Exprs()
        exprs, nodes = read_exprs(
            self._bytes(table, "Ops"), self._numbers(table, "First"), self._numbers(table, "Second")
        )
        self._expr_nodes += nodes
        if self._expr_nodes > MAX_ALL_EXPR_NODES:
            raise ValueError("the expressions are too large")
        args = _ArgReader(self._texts(item, "Texts", MAX_TEXT), exprs)
        return MethodDefinition(
            name=self._name(item.Name()),
            inputs=tuple(self._input(i, args) for i in self._items(item, "Inputs")),
            outputs=self._args(item.Outputs(), args),
            in_tree=self._tree(item, "InTree", args),
            out_tree=self._tree(item, "OutTree", args),
            values=self._values(item.Values(), exprs),
            instructions=self._instructions(item.Instructions(), args, MAX_DEPTH),
            symbols=tuple(self._symbol(s) for s in self._items(item, "Symbols")),
            arenas=self._numbers(item, "Arenas"),
            guards=self._guards(item.Guards(), args),
        )

    def _guards(self, item: Any, reader: _ArgReader) -> tuple[Expr, ...]:
        guards = self._args(item, reader)
        if not all(isinstance(guard, Expr) for guard in guards):
            raise ValueError("a guard is not an expression")
        return cast("tuple[Expr, ...]", guards)

    def _args(self, item: Any, reader: _ArgReader) -> tuple[Arg, ...]:
        return reader.read(self._bytes(item, "Kinds"), self._numbers(item, "Values"))

    def _input(self, item: Any, reader: _ArgReader) -> Input:
        (literal,) = self._args(item.Literal(), reader)
        return Input(self._name(item.Name()), item.Value(), cast("int | float | str | None", literal))  # as well

    def _values(self, item: Any, exprs: tuple[Expr, ...]) -> tuple[Value, ...]:
        sizes = iter(self._numbers(item, "Sizes"))
        codes = self._bytes(item, "Dtypes"), self._bytes(item, "Homes")
        columns = [*codes, *(self._numbers(item, f) for f in ("Ranks", "Indices", "Offsets"))]
        values = []
        for name, dtype, kind, rank, index, offset in zip(self._texts(item, "Names"), *columns, strict=True):
            shape: tuple[Dim, ...] = tuple(d if d >= 0 else exprs[-1 - d] for d in _take(rank, sizes))
            values.append(Value(name, _DTYPES[dtype], shape, Storage(_STORAGE_KINDS[kind], index, offset)))
        return _require_exhausted(values, sizes)

    def _symbol(self, item: Any) -> Symbol:
        maximum = item.Maximum() if item.Bounded() else None
        return Symbol(self._name(item.Name()), item.Minimum(), maximum, item.Input(), item.Dim(), item.Value())

    def _instructions(self, item: Any, reader: _ArgReader, depth: int) -> tuple[Instruction, ...]:
        table = item.Args()
        args = iter(self._args(table, reader))
        outputs = iter(self._numbers(item, "Outputs"))
        structured = self._items(item, "Structured")
        fields = ("Targets", "Sources", "ArgCounts", "OutputCounts")
        columns = [self._bytes(item, "Kinds"), *(self._numbers(item, f) for f in fields)]
        calls: list[Instruction] = []
        for kind, target, source, arg_count, output_count in zip(*columns, strict=True):
            operands, results = _take(arg_count, args), _take(output_count, outputs)
            if kind == schema.CallKind.KERNEL:
                calls.append(KernelCall(target, operands, results, source))
            elif kind == schema.CallKind.DELEGATE:
                calls.append(DelegateCall(target, _indices(operands), results))
            elif kind == schema.CallKind.STRUCTURED:
                (table,) = _take(1, structured)
                calls.append(self._decode_structured(table, reader, _indices(operands), results, depth))
            else:
                raise ValueError(f"{kind} is not a valid code of an instruction")
        return _require_exhausted(calls, args, outputs, structured)

    def _decode_structured(
        self, item: Any, reader: _ArgReader, operands: tuple[int, ...], outputs: tuple[int, ...], depth: int
    ) -> StructuredCall:
        if depth == 0:
            raise ValueError("control flow is nested too deeply")
        blocks = tuple(self._block(b, reader, depth - 1) for b in self._items(item, "Blocks"))
        return StructuredCall(_STRUCTURES[item.Kind()], operands, item.Carried(), blocks, outputs, item.Sequences())

    def _block(self, item: Any, reader: _ArgReader, depth: int) -> Block:
        inputs, outputs = self._numbers(item, "Inputs"), self._numbers(item, "Outputs")
        return Block(inputs, outputs, self._instructions(item.Instructions(), reader, depth))

    def _tree(self, item: Any, field: str, reader: _ArgReader) -> Tree:
        nodes = self._items(item, field)
        (root,) = _require_exhausted([self._subtree(nodes, reader, MAX_DEPTH)], nodes)
        return root

    def _subtree(self, nodes: Iterator[Any], reader: _ArgReader, depth: int) -> Tree:
        if depth == 0:
            raise ValueError("a tree is nested too deeply")
        (item,) = _take(1, nodes)
        keys = cast("tuple[str | int, ...]", self._args(item.Keys(), reader))  # the verifier checks them
        children = []
        for _ in range(item.Children()):
            children.append(self._subtree(nodes, reader, depth - 1))  # noqa: PERF401 - stops at the first that is absent
        return Tree(_TREE_KINDS[item.Kind()], keys, tuple(children), self._name(item.Type()))


def _indices(args: tuple[Arg, ...]) -> tuple[int, ...]:
    """Return the indices in arguments that are all values; raise ValueError if one is not."""
    if not all(isinstance(a, Ref) for a in args):
        raise ValueError("an instruction has an operand that is not a value")
    return tuple(a.index for a in args if isinstance(a, Ref))


def _reject_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def read_exprs(*columns: Sequence[int]) -> tuple[tuple[Expr, ...], int]:
    """Return all expressions, and their number of nodes, counted as often as they occur; raise ValueError if too many.

    Sizes and depths are counted during reading because expressions may share parts without limit.
    """
    exprs: list[Expr] = []
    sizes: list[int] = []
    depths: list[int] = []
    total = 0
    for code, first, second in zip(*columns, strict=True):
        op = _OPS[code]
        if op in LEAVES:
            exprs.append(Expr(op, _double(first) if op is Op.FLOAT else first))
            sizes.append(1)
            depths.append(1)
            total += 1
            continue
        used = (first, second)[: operands(op)]
        if not all(0 <= i < len(exprs) for i in used):
            raise ValueError("an expression refers to one that is not defined before it")
        exprs.append(Expr(op, 0, tuple(exprs[i] for i in used)))
        sizes.append(1 + sum(sizes[i] for i in used))
        depths.append(1 + max(depths[i] for i in used))
        total += sizes[-1]
        if sizes[-1] > MAX_EXPR_NODES or depths[-1] > MAX_DEPTH or total > MAX_ALL_EXPR_NODES:
            raise ValueError("an expression is too large")
    return tuple(exprs), total


class _ArgReader:
    """A reader of arguments from the parallel vectors of Args: a kind and a value for each."""

    def __init__(self, texts: tuple[str, ...], exprs: tuple[Expr, ...]) -> None:
        self._scalars: dict[int, Callable[[int], Arg]] = {
            ArgKind.NONE: lambda _: None,
            ArgKind.REF: Ref,
            ArgKind.EXPR: lambda value: exprs[_index(value)],
            ArgKind.DTYPE: _DTYPES.__getitem__,
            ArgKind.INT: int,
            ArgKind.FLOAT: _double,
            ArgKind.BOOL: lambda value: (False, True)[_index(value)],
            ArgKind.TEXT: lambda value: texts[_index(value)],
        }

    def read(self, kinds: Sequence[int], values: tuple[int, ...]) -> tuple[Arg, ...]:
        pairs = zip(kinds, values, strict=True)
        return tuple(self._one(kind, value, pairs, MAX_DEPTH) for kind, value in pairs)

    def _one(self, kind: int, value: int, rest: Iterator[tuple[int, int]], depth: int) -> Arg:
        if kind == ArgKind.LIST:
            return self._list(value, rest, depth)
        if kind == ArgKind.COMPLEX:
            imaginary, bits = next(rest, (-1, 0))
            if imaginary != ArgKind.FLOAT:
                raise ValueError("a complex number is incomplete")
            return complex(_double(value), _double(bits))
        return self._scalars[kind](value)

    def _list(self, count: int, rest: Iterator[tuple[int, int]], depth: int) -> tuple[Arg, ...]:
        if depth == 0:
            raise ValueError("an argument is nested too deeply")
        items: list[Arg] = []
        while len(items) < count:
            (pair,) = _take(1, rest)
            items.append(self._one(*pair, rest, depth - 1))
        return tuple(items)


def _take(count: int, rest: Iterator[T]) -> tuple[T, ...]:
    """Return the next `count` parts; raise ValueError if there are fewer."""
    taken = tuple(itertools.islice(rest, count))
    if len(taken) < count:
        raise ValueError("a list is incomplete")
    return taken


def _require_exhausted(items: list[T], *rests: Iterator[object]) -> tuple[T, ...]:
    """Return the items; raise ValueError if an iterator that they were built from has parts left."""
    if any(True for rest in rests for _ in rest):
        raise ValueError("a list has unused elements")
    return tuple(items)


def _index(value: int) -> int:
    """Return the value; raise IndexError if it is negative."""
    if value < 0:
        raise IndexError(f"the index {value} is negative")
    return value


def _double(bits: int) -> float:
    return float(_DOUBLE.unpack(_LONG.pack(bits))[0])
