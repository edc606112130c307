"""Writing of a program as the FlatBuffers tables of a file."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import flatbuffers
import numpy as np

from delegate.errors import ProgramError
from delegate.program import schema_generated as schema
from delegate.program.decode import read_exprs
from delegate.program.dtypes import DType
from delegate.program.expr import LEAVES, Dim, Expr, Op, Symbol
from delegate.program.instructions import DebugInfo
from delegate.program.model import (
    MAX_ALL_EXPR_NODES,
    MAX_DEPTH,
    MAX_NAME,
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
    StructuredCall,
    Tree,
    Value,
    check_name,
)
from delegate.program.schema_generated import ArgKind
from delegate.program.segments import Directory

IDENTIFIER = b"DLG1"
_DOUBLE, _LONG = struct.Struct("<d"), struct.Struct("<q")


def encode(program: Program, directory: Directory) -> bytes:
    """Return the tables of a program whose segments lie where the directory says, without its debug info.

    Raises:
        ProgramError: a number exceeds 64 bits, an argument has a foreign type, or compile specs are not JSON. Or
            nesting exceeds a limit of `model`, or the tables exceed 2 GiB.
    """
    return _encode_item(lambda: _Encoder().program(program, directory))


def encode_debug_info(info: DebugInfo) -> bytes:
    """Return the segment of debug info; raise ProgramError if a limit of `model` is exceeded."""
    return _encode_item(lambda: _Encoder().debug_info(info))


def _encode_item(encoder: Callable[[], bytes]) -> bytes:
    try:
        return encoder()
    except RecursionError:
        raise ProgramError("the program is nested too deeply to be saved") from None
    except (struct.error, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ProgramError(f"the program contains a value that cannot be saved: {error}") from error
    except flatbuffers.builder.BuilderSizeError as error:
        raise ProgramError("the tables of the program exceed 2 GiB", remedy="split its methods") from error


class _Encoder:
    """Writes tables into one builder. FlatBuffers requires children before their parents."""

    def __init__(self) -> None:
        self._builder = flatbuffers.Builder(1 << 16)
        self._pool = _ArgPool()
        self._expr_nodes = self._specs = 0  # of the whole file

    def program(self, program: Program, directory: Directory) -> bytes:
        root = self._table(
            "Program",
            Methods=self._tables(self._method(m) for m in program.methods),
            Operators=self._texts(program.operators),
            Constants=self._tables(self._tensor(c) for c in program.constants),
            States=self._tables(self._tensor(s) for s in program.states),
            Delegates=self._tables(self._delegate(d) for d in program.delegates),
            Segments=self._table(
                "Segments",
                Offsets=self._numbers(directory.offsets, np.uint64),
                Sizes=self._numbers(directory.sizes, np.uint64),
                Sha256=self._builder.CreateByteVector(b"".join(directory.digests)),
                Debug=directory.debug,
            ),
            Fallbacks=self._tables(self._method(m) for m in program.fallbacks),
            OnFallback=self._builder.CreateString(program.on_fallback),
            Spaces=self._tables(self._space(s) for s in program.spaces),
            LoadRules=self._name(program.load_rules, MAX_SPECS),
        )
        return self._finish(root)

    def debug_info(self, info: DebugInfo) -> bytes:
        methods, fallbacks = (
            self._tables(self._table("MethodSources", Sources=self._texts(s, MAX_TEXT)) for s in sources)
            for sources in (info.methods, info.fallbacks)
        )
        report = self._builder.CreateString(info.report)
        root = self._table("DebugInfo", Report=report, Methods=methods, Fallbacks=fallbacks)
        return self._finish(root)

    def _finish(self, root: int) -> bytes:
        self._builder.Finish(root, IDENTIFIER)
        return bytes(self._builder.Output())

    def _table(self, table: str, **fields: Any) -> int:
        getattr(schema, f"{table}Start")(self._builder)
        for name, value in fields.items():
            getattr(schema, f"{table}Add{name}")(self._builder, value)
        return int(getattr(schema, f"{table}End")(self._builder))

    def _tables(self, offsets: Iterable[int]) -> int:
        written = list(offsets)
        self._builder.StartVector(4, len(written), 4)
        for offset in reversed(written):
            self._builder.PrependUOffsetTRelative(offset)
        return int(self._builder.EndVector())

    def _name(self, text: str, most: int = MAX_NAME) -> int:
        check_name(text, most)
        return int(self._builder.CreateString(text))

    def _texts(self, texts: Iterable[str], most: int = MAX_NAME) -> int:
        return self._tables(self._name(t, most) for t in texts)

    def _numbers(self, numbers: Sequence[int], dtype: type[np.integer[Any]]) -> int:
        return int(self._builder.CreateNumpyVector(np.array(numbers, dtype)))

    def _indices(self, indices: Sequence[int]) -> int:
        return self._numbers(indices, np.uint32)

    def _method(self, method: MethodDefinition) -> int:
        self._pool = _ArgPool()
        fields = {
            "Name": self._name(method.name),
            "Inputs": self._tables(self._input(i) for i in method.inputs),
            "Outputs": self._args(method.outputs),
            "InTree": self._tree(method.in_tree),
            "OutTree": self._tree(method.out_tree),
            "Values": self._values(method.values),
            "Instructions": self._instructions(method.instructions, MAX_DEPTH),
            "Symbols": self._tables(self._symbol(s) for s in method.symbols),
            "Arenas": self._numbers(method.arenas, np.int64),
            "Guards": self._args(method.guards),
            "Exprs": self._exprs(method),
            "Texts": self._texts(self._pool.texts, MAX_TEXT),
        }
        return self._table("Method", **fields)

    def _exprs(self, method: MethodDefinition) -> int:
        """Write the expressions in the pool, which must be within the limits of the reader."""
        ops, first, second = self._pool.exprs
        self._expr_nodes += read_exprs(ops, first, second)[1]
        if self._expr_nodes > MAX_ALL_EXPR_NODES:
            raise ProgramError("the expressions of sizes are too large", where=f"method {method.name!r}")
        return self._table(
            "Exprs",
            Ops=self._numbers(ops, np.uint8),
            First=self._numbers(first, np.int64),
            Second=self._numbers(second, np.uint32),
        )

    def _args(self, args: Sequence[Arg]) -> int:
        kinds: list[int] = []
        values: list[int] = []
        for arg in args:
            for kind, value in self._pool.flatten(arg):
                kinds.append(kind)
                values.append(value)
        return self._table("Args", Kinds=self._numbers(kinds, np.uint8), Values=self._numbers(values, np.int64))

    def _input(self, leaf: Input) -> int:
        name, literal = self._name(leaf.name), self._args((leaf.literal,))
        return self._table("Input", Name=name, Value=leaf.value, Literal=literal)

    def _values(self, values: Sequence[Value]) -> int:
        storages = [v.storage for v in values]
        return self._table(
            "Values",
            Names=self._texts(v.name for v in values),
            Dtypes=self._numbers([v.dtype.value for v in values], np.uint8),
            Ranks=self._numbers([len(v.shape) for v in values], np.uint32),
            Sizes=self._numbers([self._pool.dim(d) for v in values for d in v.shape], np.int64),
            Homes=self._numbers([s.kind.value for s in storages], np.uint8),
            Indices=self._numbers([s.index for s in storages], np.uint32),
            Offsets=self._numbers([s.offset for s in storages], np.int64),
        )

    def _instructions(self, calls: Sequence[Instruction], depth: int) -> int:
        structured = [self._encode_structured(c, depth) for c in calls if isinstance(c, StructuredCall)]
        rows = [_row(c) for c in calls]
        return self._table(
            "Instructions",
            Kinds=self._numbers([r.kind for r in rows], np.uint8),
            Targets=self._numbers([r.target for r in rows], np.uint32),
            Sources=self._numbers([r.source for r in rows], np.int32),
            ArgCounts=self._numbers([len(r.args) for r in rows], np.uint32),
            Args=self._args([a for r in rows for a in r.args]),
            OutputCounts=self._numbers([len(c.outputs) for c in calls], np.uint32),
            Outputs=self._indices([o for c in calls for o in c.outputs]),
            Structured=self._tables(structured),
        )

    def _encode_structured(self, call: StructuredCall, depth: int) -> int:
        if depth == 0:
            raise ProgramError(f"control flow is nested deeper than {MAX_DEPTH}")
        blocks = self._tables([self._block(b, depth - 1) for b in call.blocks])
        return self._table(
            "Structured", Kind=call.kind.value, Carried=call.carried, Blocks=blocks, Sequences=call.sequences
        )

    def _block(self, block: Block, depth: int) -> int:
        inputs, outputs = self._indices(block.inputs), self._indices(block.outputs)
        instructions = self._instructions(block.instructions, depth)
        return self._table("Block", Inputs=inputs, Outputs=outputs, Instructions=instructions)

    def _symbol(self, symbol: Symbol) -> int:
        return self._table(
            "Symbol",
            Name=self._name(symbol.name),
            Minimum=symbol.minimum,
            Maximum=symbol.maximum or 0,
            Bounded=symbol.maximum is not None,
            Input=symbol.input,
            Dim=symbol.dim,
            Value=symbol.value,
        )

    def _tree(self, tree: Tree) -> int:
        return self._tables(self._tree_node(t) for t in _preorder(tree, MAX_DEPTH))

    def _tree_node(self, tree: Tree) -> int:
        kind = getattr(schema.TreeKind, tree.kind)
        keys, name = self._args(tree.keys), self._name(tree.type)
        return self._table("TreeNode", Kind=kind, Children=len(tree.children), Keys=keys, Type=name)

    def _tensor(self, tensor: Constant | State) -> int:
        name, shape = self._name(tensor.name), self._numbers(tensor.shape, np.uint64)
        return self._table("Tensor", Name=name, Dtype=tensor.dtype.value, Shape=shape, Segment=tensor.segment)

    def _space(self, space: MemorySpace) -> int:
        backend, name = self._name(space.backend), self._name(space.name)
        return self._table("MemorySpace", Backend=backend, Name=name)

    def _delegate(self, spec: DelegateSpec) -> int:
        specs = json.dumps(dict(spec.compile_specs), sort_keys=True, separators=(",", ":"), allow_nan=False)
        self._specs += len(specs.encode())
        if self._specs > MAX_SPECS:
            raise ProgramError("the compile specs are too large", where=f"delegate {spec.name!r}")
        texts = [self._name(spec.name), self._name(spec.backend), self._builder.CreateString(specs)]
        fields = dict(zip(("Name", "Backend", "CompileSpecs"), texts, strict=True))
        fields["Data"] = self._indices(spec.data)
        return self._table("Delegate", **fields, Segment=spec.segment, Fallback=spec.fallback, Space=spec.space)


class _Row(NamedTuple):
    """An instruction in the form of the vectors in Instructions."""

    kind: int
    target: int
    source: int
    args: tuple[Arg, ...]


def _row(call: Instruction) -> _Row:
    kinds = schema.CallKind
    if isinstance(call, KernelCall):
        return _Row(kinds.KERNEL, call.operator, call.source, call.args)
    if isinstance(call, DelegateCall):
        return _Row(kinds.DELEGATE, call.delegate, -1, tuple(map(Ref, call.inputs)))
    return _Row(kinds.STRUCTURED, 0, -1, tuple(map(Ref, call.operands)))


def _preorder(tree: Tree, depth: int) -> Iterable[Tree]:
    if depth == 0:
        raise ProgramError(f"inputs or outputs are nested deeper than {MAX_DEPTH}")
    yield tree
    for child in tree.children:
        yield from _preorder(child, depth - 1)


class _ArgPool:
    """The expressions and texts that the arguments of one method refer to by index, each stored once."""

    def __init__(self) -> None:
        self._exprs: dict[tuple[int, int, int], int] = {}
        self._known: dict[int, tuple[Expr, int]] = {}  # by identity; the expression is kept, so that it stays
        self._texts: dict[str, int] = {}
        self._scalars: dict[type, tuple[int, Callable[[Any], int]]] = {
            type(None): (ArgKind.NONE, lambda _: 0),
            Ref: (ArgKind.REF, lambda ref: ref.index),
            Expr: (ArgKind.EXPR, self.expr),
            DType: (ArgKind.DTYPE, lambda dtype: dtype.value),
            int: (ArgKind.INT, int),
            float: (ArgKind.FLOAT, _bits),
            bool: (ArgKind.BOOL, int),
            str: (ArgKind.TEXT, self._text),
        }

    @property
    def exprs(self) -> tuple[list[int], list[int], list[int]]:
        """The operations, first and second operands of the expressions."""
        rows = [*self._exprs]
        return [op for op, _, _ in rows], [first for _, first, _ in rows], [second for _, _, second in rows]

    @property
    def texts(self) -> Iterable[str]:
        return self._texts

    def dim(self, dim: Dim) -> int:
        """Return a size as it is stored in Value.shape."""
        if isinstance(dim, Expr):
            return -1 - self.expr(dim)
        if dim < 0:
            raise ProgramError(f"{dim} is not a valid size")
        return dim

    def expr(self, expr: Expr) -> int:
        """Return the index of an expression."""
        known = self._known.get(id(expr))  # many sizes share one expression, which is walked once
        if known is None:
            if expr.op in LEAVES:
                key = (expr.op.value, _bits(expr.value) if expr.op is Op.FLOAT else int(expr.value), 0)
            else:
                left, right, *_ = *map(self.expr, expr.args), 0
                key = (expr.op.value, left, right)
            known = self._known[id(expr)] = expr, self._exprs.setdefault(key, len(self._exprs))
        return known[1]

    def flatten(self, arg: Arg, depth: int = MAX_DEPTH) -> list[tuple[int, int]]:
        """Return the kind and the value of an argument, followed by the same for its items."""
        if depth == 0:
            raise ProgramError(f"an argument is nested deeper than {MAX_DEPTH}")
        if isinstance(arg, tuple):
            return [(ArgKind.LIST, len(arg)), *(pair for item in arg for pair in self.flatten(item, depth - 1))]
        if isinstance(arg, complex):
            return [(ArgKind.COMPLEX, _bits(arg.real)), (ArgKind.FLOAT, _bits(arg.imag))]
        scalar = self._scalars.get(type(arg))
        if scalar is None:
            raise ProgramError(f"an argument cannot be a {type(arg).__name__}: {arg!r}")
        kind, value = scalar
        return [(kind, value(arg))]

    def _text(self, text: str) -> int:
        check_name(text, MAX_TEXT)
        return self._texts.setdefault(text, len(self._texts))


def _bits(number: float) -> int:
    """Return a double's bits. Every NaN has the same bits, so that equal programs give equal bytes."""
    return int(_LONG.unpack(_DOUBLE.pack(math.nan if math.isnan(number) else number))[0])
