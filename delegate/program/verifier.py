"""The verifier of programs. The runtime trusts every index and offset of a verified program.

It takes time linear in the program, apart from the sorting of arena blocks (see `lifetimes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from typing import Any, NoReturn

from delegate.errors import ProgramError
from delegate.program.dtypes import DType
from delegate.program.expr import Dim, Expr, ExpressionBounds, Op, Symbol, SymbolSets, operands
from delegate.program.instructions import block_bases, written_input
from delegate.program.lifetimes import check_memory
from delegate.program.model import (
    COPY_ACROSS,
    MAX_RANK,
    MAX_SYMBOLS,
    MAX_TENSOR_BYTES,
    Arg,
    Block,
    Constant,
    DelegateCall,
    DelegateSpec,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    State,
    StorageKind,
    Structure,
    StructuredCall,
    Tree,
    Value,
)
from delegate.program.segments import ALIGNMENT

_POLICIES = ("allow", "warn", "error")


def verify(program: Program) -> None:
    """Check a program.

    Raises:
        ProgramError: names the method, the instruction or the value, and what is wrong with it.
    """
    for kind, tensors in (("constant", program.constants), ("state", program.states)):
        for tensor in tensors:
            _check_tensor(tensor, program, f"{kind} {tensor.name!r}")
    for spec in program.delegates:
        for segment in (spec.segment, *spec.data):
            _check_index(segment, program.segments, "segment", f"delegate {spec.name!r}")
        if spec.fallback != -1:
            _check_index(spec.fallback, program.fallbacks, "fallback", f"delegate {spec.name!r}")
        _check_space(spec, program)
    if program.on_fallback not in _POLICIES:
        fail(f"{program.on_fallback!r} is not a policy for fallbacks", "the program")
    _verify_methods(program, program.fallbacks, are_fallbacks=True)
    _verify_methods(program, program.methods)


def _verify_methods(program: Program, methods: Sequence[MethodDefinition], *, are_fallbacks: bool = False) -> None:
    names: set[str] = set()
    for method in methods:
        if method.name in names:
            fail("two methods have this name", f"method {method.name!r}")
        names.add(method.name)
        try:
            bounds = ExpressionBounds(method.symbols)
            declared = _DeclarationChecker(program, method, bounds)
            declared.verify()
            _FlowChecker(program, method, is_fallback=are_fallbacks, outputs=declared.outputs).verify()
            check_memory(method, bounds)
        except RecursionError:
            raise ProgramError("the method is nested too deeply", where=f"method {method.name!r}") from None


def _check_space(spec: DelegateSpec, program: Program) -> None:
    """Raise ProgramError unless the memory space of a delegate belongs to its backend."""
    if spec.space == 0:
        return
    _check_index(spec.space - 1, program.spaces, "memory space", f"delegate {spec.name!r}")
    space = program.spaces[spec.space - 1]
    if space.backend != spec.backend:
        fail(f"its tensors are declared in memory of {space.backend!r}", f"delegate {spec.name!r}")


def _check_tensor(tensor: Constant | State, program: Program, where: str) -> None:
    _check_index(tensor.segment, program.segments, "segment", where)
    _check_shape(tensor.shape, tensor.dtype, where)
    need, have = tensor.dtype.itemsize * math.prod(tensor.shape), memoryview(program.segments[tensor.segment]).nbytes
    if need != have:
        shape = list(tensor.shape)
        fail(f"{tensor.dtype.name}{shape} needs {need} bytes, but segment {tensor.segment} has {have}", where)


_REMEDY = "lower the model again; if that does not help, report it"


def fail(what: str, where: str) -> NoReturn:
    """Raise ProgramError."""
    raise ProgramError(what, where=where, remedy=_REMEDY)


def _check_index(index: int, table: Sequence[object], what: str, where: str) -> None:
    """Raise ProgramError unless the index is one of the table."""
    if not 0 <= index < len(table):
        fail(f"there is no {what} {index}, only {len(table)}", where)


def _check_shape(shape: Sequence[Dim], dtype: DType, where: str) -> None:
    """Raise ProgramError unless an array can have the shape, while symbolic sizes are checked when they are known."""
    if len(shape) > MAX_RANK:
        fail(f"it has {len(shape)} dimensions, more than {MAX_RANK}", where)
    sizes = [d for d in shape if isinstance(d, int)]
    if any(d < 0 for d in sizes):
        fail(f"the size {min(sizes)} is negative", where)
    if dtype.itemsize * math.prod(d for d in sizes if d) > MAX_TENSOR_BYTES:
        fail(f"no memory is large enough for {dtype.name}{_sizes_text(shape)}", where)


def _sizes_text(shape: Iterable[Dim]) -> str:
    """Return a shape as text for messages."""
    return f"[{', '.join(map(str, shape))}]"


class _Checker:
    """Checks one method.

    Attributes:
        where: the thing being checked, for messages.
    """

    def __init__(self, program: Program, method: MethodDefinition) -> None:
        self.program, self.method = program, method
        self.where = self.name = f"method {method.name!r}"
        self._checked: set[int] = set()  # identities of expressions: parts are shared, each is walked once

    def fail(self, what: str) -> NoReturn:
        """Raise ProgramError."""
        fail(what, self.where)

    def index(self, index: int, table: Sequence[object], what: str) -> None:
        """Raise ProgramError unless the index is one of the table."""
        _check_index(index, table, what, self.where)

    def expr(self, expr: Expr) -> None:
        """Raise ProgramError unless operators have their operands and symbols exist."""
        if id(expr) in self._checked:
            return
        if expr.op is Op.SYMBOL:
            self.index(int(expr.value), self.method.symbols, "symbol")
        if len(expr.args) != operands(expr.op):
            self.fail(f"{expr.op.name} has {len(expr.args)} operands")
        for arg in expr.args:
            self.expr(arg)
        self._checked.add(id(expr))


_KEYED = {"tuple": False, "list": False, "dict": True, "namedtuple": True, "record": True}  # kinds of trees


class _DeclarationChecker(_Checker):
    """Checks of everything in a method but its instructions.

    Attributes:
        outputs: the numbers of the outputs whose memory a value uses.
    """

    def __init__(self, program: Program, method: MethodDefinition, bounds: ExpressionBounds) -> None:
        super().__init__(program, method)
        self._bounds = bounds
        self.outputs: set[int] = set()
        self._tables: dict[StorageKind, tuple[Sequence[Any], str]] = {
            StorageKind.CONSTANT: (program.constants, "constant"),
            StorageKind.STATE: (program.states, "state"),
            StorageKind.INPUT: (method.inputs, "input"),
            StorageKind.OUTPUT: (method.outputs, "output"),
            StorageKind.ALIAS: (method.values, "value"),
        }

    def verify(self) -> None:
        """Raise ProgramError if a declaration is invalid."""
        self._check_trees()
        for index, value in enumerate(self.method.values):
            self.where = f"{self.name}, value %{index} {value.name!r}"
            self._check_value(index, value)
        self._check_inputs()
        self._check_symbols()
        self._check_sizes_of_inputs()
        self.where = f"{self.name}, guards"
        for guard in self.method.guards:
            self.expr(guard)

    def _check_trees(self) -> None:
        method = self.method
        for name, tree, leaves in (("in_tree", method.in_tree, method.inputs), ("out_tree", method.out_tree,
                                   method.outputs)):  # fmt: skip
            self.where = f"{self.name}, {name}"
            if (count := self._leaves(tree)) != len(leaves):
                self.fail(f"the tree has {count} leaves for {len(leaves)} {name.removesuffix('_tree')}puts")
        if [c.kind for c in method.in_tree.children] != ["tuple", "dict"]:
            self.where = f"{self.name}, in_tree"
            self.fail("the inputs must be a tuple of arguments and a dict of keyword arguments")

    def _leaves(self, tree: Tree) -> int:
        if tree.kind == "leaf":
            if tree.children:
                self.fail("a leaf has children")
            return 1
        if tree.kind not in _KEYED:
            self.fail(f"there is no kind of container {tree.kind!r}")
        if len(tree.keys) != (len(tree.children) if _KEYED[tree.kind] else 0):
            self.fail(f"a {tree.kind} of {len(tree.children)} parts has {len(tree.keys)} keys")
        if not all(isinstance(k, str | int) for k in tree.keys):
            self.fail(f"a {tree.kind} has keys that are neither text nor integers")
        return sum(self._leaves(c) for c in tree.children)

    def _check_value(self, index: int, value: Value) -> None:
        _check_shape(value.shape, value.dtype, self.where)
        for dim in value.shape:
            if isinstance(dim, Expr):
                self.expr(dim)
        storage = value.storage
        if storage.kind is StorageKind.ARENA:
            self._check_arena(value)
            return
        table, what = self._tables[storage.kind]
        self.index(storage.index, table, what)
        if storage.kind in (StorageKind.CONSTANT, StorageKind.STATE):
            self._check_like(value, table[storage.index])
        elif storage.kind is StorageKind.INPUT and table[storage.index].value != index:
            self.fail(f"input {storage.index} is stored in another value")
        elif storage.kind is StorageKind.OUTPUT:
            if storage.index in self.outputs:
                self.fail(f"output {storage.index} has the memory of two values")
            self.outputs.add(storage.index)

    def _check_like(self, value: Value, tensor: Constant | State) -> None:
        if (value.dtype, value.shape) != (tensor.dtype, tensor.shape):
            actual = f"{value.dtype.name}{_sizes_text(value.shape)}"
            self.fail(
                f"it is {actual}, but its tensor {tensor.name!r} is {tensor.dtype.name}{_sizes_text(tensor.shape)}"
            )

    def _check_arena(self, value: Value) -> None:
        storage = value.storage
        self.index(storage.index, self.method.arenas, "memory space")
        arena = self.method.arenas[storage.index]
        if (storage.offset == -1) != (arena == -1):
            self.fail(
                f"offset {storage.offset} in an arena of {arena} bytes: both or neither must be planned per shape"
            )
        if storage.offset == -1:
            return
        if storage.offset < 0 or storage.offset % ALIGNMENT:
            self.fail(f"the offset {storage.offset} is not a multiple of {ALIGNMENT}")
        count = self._bounds.largest_count(value.shape)
        if count is None:
            self.fail("it has an offset, although its size has no known bound")
            return
        end = storage.offset + value.dtype.itemsize * count
        if end > arena:
            self.fail(f"it ends at byte {end}, outside an arena of {arena} bytes")

    def _check_inputs(self) -> None:
        for index, leaf in enumerate(self.method.inputs):
            self.where = f"{self.name}, input {leaf.name!r}"
            if leaf.literal is not None and not isinstance(leaf.literal, int | float | str):
                self.fail(f"it cannot be a fixed {type(leaf.literal).__name__}")
            if leaf.value == -1:
                continue
            self.index(leaf.value, self.method.values, "value")
            storage = self.method.values[leaf.value].storage
            if (storage.kind, storage.index) != (StorageKind.INPUT, index):
                self.fail(f"value %{leaf.value} is not stored as input {index}")
            if leaf.literal is not None:
                self.fail("it is both a tensor and a literal")

    def _check_symbols(self) -> None:
        if len(self.method.symbols) > MAX_SYMBOLS:
            self.fail(f"it has {len(self.method.symbols)} symbols, more than {MAX_SYMBOLS}")
        for symbol in self.method.symbols:
            self.where = f"{self.name}, symbol {symbol.name!r}"
            if symbol.maximum is not None and symbol.minimum > symbol.maximum:
                self.fail(f"its range {symbol.minimum} to {symbol.maximum} is empty")
            if symbol.input == -1:
                self._check_data_symbol(symbol)
                continue
            self.index(symbol.input, self.method.inputs, "input")
            value = self.method.inputs[symbol.input].value
            if value == -1 and symbol.dim == -1:
                continue  # the input is a number, the symbol its value
            self.index(symbol.dim, self.method.values[value].shape if value >= 0 else (), "dimension")

    def _check_sizes_of_inputs(self) -> None:
        """Check that sizes of inputs depend on inputs alone: they are compared with the caller's before a run."""
        symbols, sets = self.method.symbols, SymbolSets()
        late = {i for i, s in enumerate(symbols) if s.input < 0}
        for leaf in self.method.inputs:
            self.where = f"{self.name}, input {leaf.name!r}"
            shape = self.method.values[leaf.value].shape if leaf.value >= 0 else ()
            if unknown := late & sets.of(shape):
                self.fail(f"its shape depends on {symbols[min(unknown)].name!r}, which depends on data")

    def _check_data_symbol(self, symbol: Symbol) -> None:
        self.index(symbol.value, self.method.values, "value")
        if symbol.dim != -1:
            self.index(symbol.dim, self.method.values[symbol.value].shape, "dimension")


_BLOCKS = {Structure.IF: 2, Structure.WHILE: 2, Structure.SCAN: 1, Structure.MAP: 1}
_ITERATED, _CARRYING = (Structure.SCAN, Structure.MAP), (Structure.SCAN, Structure.WHILE)
_READ_ONLY = {StorageKind.INPUT, StorageKind.CONSTANT}  # but for `written_input`
_INITIAL = {StorageKind.INPUT, StorageKind.CONSTANT, StorageKind.STATE}  # available before the first instruction


class _FlowChecker(_Checker):
    """Checks on the instructions of a method with valid declarations.

    Args:
        program, method: the owner of the instructions.
        is_fallback: true if the method replaces a delegate.
        outputs: the numbers of the outputs whose memory a value uses.
    """

    def __init__(self, program: Program, method: MethodDefinition, *, is_fallback: bool, outputs: Set[int]) -> None:
        super().__init__(program, method)
        self._is_fallback, self._outputs = is_fallback, outputs
        self._readable = [v.storage.kind in _INITIAL for v in method.values]
        self._defined = list(self._readable)
        self._owner = list(range(len(method.values)))  # the value that owns the memory

    def verify(self) -> None:
        """Raise ProgramError if an instruction is invalid."""
        self._instructions(self.method.instructions, "instruction")
        self.where = f"{self.name}, outputs"
        self._args(self.method.outputs)
        self._check_outputs()
        for index, value in enumerate(self.method.values):
            if not self._defined[index]:
                self.where = f"{self.name}, value %{index} {value.name!r}"
                self.fail("no instruction computes it")

    def _check_outputs(self) -> None:
        """Check that the value in an output's memory is that output, or that the output is a view of it."""
        for number in self._outputs:
            ref = self.method.outputs[number]
            index = self._owner[ref.index] if isinstance(ref, Ref) else -1
            storage = self.method.values[index].storage if index >= 0 else None
            if storage is None or (storage.kind, storage.index) != (StorageKind.OUTPUT, number):
                self.fail(f"output {number} is not in its own memory")

    def _instructions(self, instructions: Iterable[Instruction], path: str) -> None:
        for index, call in enumerate(instructions):
            self.where = f"{self.name}, {path} {index}"
            if isinstance(call, KernelCall):
                self._kernel_call(call)
            elif isinstance(call, DelegateCall):
                self._delegate_call(call)
            else:
                self._check_structured_call(call, f"{path} {index}")

    def _kernel_call(self, call: KernelCall) -> None:
        self.index(call.operator, self.program.operators, "operator")
        if call.source != -1:
            self.index(call.source, self.method.sources, "source")
        across = self.program.operators[call.operator] == COPY_ACROSS
        uploads = across and any(self._on_device(o) for o in call.outputs)
        fetch_count = int(across and not uploads)
        self._args(call.args[:fetch_count], None)
        self._args(call.args[fetch_count:])
        if written_input(self.program, self.method, call) is not None:
            return
        self._check_aliases(call)
        self._make(call.outputs, aliases=True, space=None if uploads else 0)

    def _check_aliases(self, call: KernelCall) -> None:
        """Check that a kernel returns views of its first argument alone, because lifetimes depend on it."""
        for index in call.outputs:
            self.index(index, self.method.values, "value")
            storage = self.method.values[index].storage
            if storage.kind is StorageKind.ALIAS and call.args[:1] != (Ref(storage.index),):
                self.fail(f"%{index} {self.method.values[index].name!r} is not an alias of the first argument")

    def _on_device(self, index: int) -> bool:
        self.index(index, self.method.values, "value")
        storage = self.method.values[index].storage
        return storage.kind is StorageKind.ARENA and storage.index > 0

    def _delegate_call(self, call: DelegateCall) -> None:
        if self._is_fallback:
            self.fail("a fallback calls a delegate")
        self.index(call.delegate, self.program.delegates, "delegate")
        spec = self.program.delegates[call.delegate]
        self._read(call.inputs, spec.space)
        self._make(call.outputs, aliases=False, space=spec.space)
        if spec.fallback >= 0:
            self._check_fallback(call, self.program.fallbacks[spec.fallback])

    def _check_fallback(self, call: DelegateCall, fallback: MethodDefinition) -> None:
        """Check that a fallback has as many inputs and outputs as the delegate, of the same dtypes."""
        values = self.method.values
        for what, indices, refs in (
            ("inputs", call.inputs, [Ref(i.value) for i in fallback.inputs if i.value >= 0]),
            ("outputs", call.outputs, fallback.outputs),
        ):
            dtypes = [fallback.values[r.index].dtype if isinstance(r, Ref) else None for r in refs]
            if dtypes != [values[i].dtype for i in indices]:
                self.fail(f"the {what} of the fallback {fallback.name!r} do not match its delegate")

    def _check_structured_call(self, call: StructuredCall, path: str) -> None:
        self._read(call.operands)
        kind, taken, outputs = call.kind, len(call.operands), len(call.outputs)
        for is_right, what in (
            (len(call.blocks) == _BLOCKS[kind], f"has {len(call.blocks)} blocks, not {_BLOCKS[kind]}"),
            (0 <= call.carried <= taken, f"carries {call.carried} of {taken} operands"),
            (0 <= call.sequences <= taken - call.carried, f"has {call.sequences} sequences of {taken} operands"),
            ((call.sequences > 0) == (kind in _ITERATED), f"has {call.sequences} sequences"),
            (not call.carried or kind in _CARRYING, "must not carry values"),
            (
                call.carried == outputs if kind is Structure.WHILE else call.carried <= outputs,
                f"carries {call.carried} values, but has {outputs} outputs",
            ),
        ):
            if not is_right:
                self.fail(f"{kind.name} {what}")
        inputs = taken - (kind is Structure.IF)
        of_blocks = [outputs] * len(call.blocks)
        if kind is Structure.WHILE:
            of_blocks[0] = 1  # the condition
        self._make(call.outputs[: call.carried], aliases=False)  # they hold the carried values from turn to turn
        for number, (block, expected) in enumerate(zip(call.blocks, of_blocks, strict=True)):
            self.where = f"{self.name}, {path}, block {number}"
            if (len(block.inputs), len(block.outputs)) != (inputs, expected):
                actual = f"{len(block.inputs)} inputs and {len(block.outputs)} outputs"
                self.fail(f"the block has {actual}, but {kind.name} needs {inputs} and {expected}")
            self._block(call, block, f"{path}, block {number}, instruction")
        self.where = f"{self.name}, {path}"
        self._make(call.outputs[call.carried :], aliases=False)

    def _block(self, call: StructuredCall, block: Block, path: str) -> None:
        place = self.where
        bases = dict(block_bases(call, block))
        for index in block.inputs:
            self._check_block_input(index, bases.get(index, -1))
        self._make(block.inputs, aliases=True)
        self._instructions(block.instructions, path)
        self.where = place
        self._read(block.outputs)
        for inner in block.instructions:
            self._forget(inner.outputs)
        self._forget(block.inputs)

    def _check_block_input(self, index: int, base: int) -> None:
        """Check that an alias among a block's inputs is an alias of the value that it holds, of the same type."""
        self.index(index, self.method.values, "value")
        values, storage = self.method.values, self.method.values[index].storage
        if storage.kind is not StorageKind.ALIAS:
            return
        if storage.index != base:
            self.fail(f"%{index} {values[index].name!r} is an alias of a value that is not passed to the block")
        if (values[index].dtype, values[index].shape) != (values[base].dtype, values[base].shape):
            self.fail(f"%{index} {values[index].name!r} has another type than %{base}, of which it is an alias")

    def _forget(self, values: Iterable[int]) -> None:
        """Make values unreadable after the end of their block."""
        for index in values:
            self._readable[index] = self.method.values[index].storage.kind in _INITIAL

    def _read(self, values: Iterable[int], space: int | None = 0) -> None:
        """Check that values can be read from the host's memory or from a memory space; None: any space."""
        for index in values:
            self.index(index, self.method.values, "value")
            if not self._readable[index]:
                self.fail(f"value %{index} {self.method.values[index].name!r} is read before it is computed")
            self._check_reach(index, space)

    def _check_reach(self, index: int, space: int | None) -> None:
        """Check that a value does not lie in another device's memory. A space of None means no check."""
        storage = self.method.values[index].storage
        if (
            space is not None
            and storage.kind is StorageKind.ARENA
            and storage.index not in (0, space)
            and storage.index <= len(self.program.spaces)
        ):
            device = self.program.spaces[storage.index - 1]
            name = f"value %{index} {self.method.values[index].name!r}"
            self.fail(f"{name} is in {device.backend}'s memory {device.name!r}, which is not accessible here")

    def _make(self, values: Iterable[int], *, aliases: bool, space: int | None = 0) -> None:
        for index in values:
            self.index(index, self.method.values, "value")
            value = self.method.values[index]
            name, kind = f"value %{index} {value.name!r}", value.storage.kind
            if kind in _READ_ONLY:
                self.fail(f"{name} is written, but {kind.name} is read-only")
            if kind is StorageKind.STATE:
                continue
            if self._defined[index]:
                self.fail(f"{name} is computed twice")
            if kind is StorageKind.ALIAS:
                if not aliases:
                    self.fail(f"{name} is an alias, which only a kernel or a block can create")
                self._read((value.storage.index,))
                self._owner[index] = self._owner[value.storage.index]
            self._check_reach(index, space)
            self._defined[index] = self._readable[index] = True

    def _args(self, args: Iterable[Arg], space: int | None = 0) -> None:
        for arg in args:
            if isinstance(arg, tuple):
                self._args(arg, space)
            elif isinstance(arg, Ref):
                self._read((arg.index,), space)
            elif isinstance(arg, Expr):
                self.expr(arg)
