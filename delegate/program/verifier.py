"""The verifier: whether a program means something, so that the runtime can trust every index and offset in it.

Takes time linear in the program, apart from the sorting of arena blocks (see `lifetimes`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from delegate.errors import ProgramError
from delegate.program.blocks import block_bases
from delegate.program.bounds import Bounds
from delegate.program.dtypes import DType
from delegate.program.expr import Dim, Expr, Op, SymbolSets, members, operands, set_of
from delegate.program.lifetimes import check_memory
from delegate.program.limits import MAX_RANK, MAX_SYMBOLS, MAX_TENSOR_BYTES
from delegate.program.memory_plan import ALIGNMENT
from delegate.program.model import (
    COPY_ACROSS,
    FORMAT_VERSION,
    Arg,
    Block,
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
from delegate.program.written import written_input

_BLOCKS = {Structure.IF: 2, Structure.WHILE: 2, Structure.SCAN: 1, Structure.MAP: 1}
_KEYED = {"tuple": False, "list": False, "dict": True, "namedtuple": True, "record": True}  # kinds of trees
_READ_ONLY = {Home.INPUT, Home.CONSTANT}  # but for `written_input`
_GIVEN = {Home.INPUT, Home.CONSTANT, Home.STATE}  # there before the first instruction
_LEAST_BRANCHES = 2
_POLICIES = ("allow", "warn", "error")
_REMEDY = "lower the model again; if that does not help, report it"


def verify(program: Program) -> None:
    """Check a program.

    Raises:
        ProgramError: names the method, the instruction or the value, and what is wrong with it.
    """
    if program.version != FORMAT_VERSION:
        _fail(f"format version {program.version} is not {FORMAT_VERSION}", "the program")
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
        _fail(f"{program.on_fallback!r} is no policy for fallbacks", "the program")
    _verify_methods(program, program.fallbacks, are_fallbacks=True)
    _verify_methods(program, program.methods)


def _verify_methods(program: Program, methods: Sequence[Method], *, are_fallbacks: bool = False) -> None:
    names: set[str] = set()
    for method in methods:
        if method.name in names:
            _fail("two methods have this name", f"method {method.name!r}")
        names.add(method.name)
        try:
            bounds = Bounds(method.symbols)
            _MethodVerifier(program, method, are_fallbacks, bounds).verify()
            check_memory(method, bounds)
        except RecursionError:
            raise ProgramError("something is nested too deeply", where=f"method {method.name!r}") from None


def _fail(what: str, where: str) -> None:
    raise ProgramError(what, where=where, remedy=_REMEDY)


def _check_index(index: int, table: Sequence[object], what: str, where: str) -> None:
    if not 0 <= index < len(table):
        _fail(f"there is no {what} {index}, only {len(table)}", where)


def _check_space(spec: DelegateSpec, program: Program) -> None:
    """The memory space that a delegate's tensors may lie in is one of its own backend."""
    if spec.space == 0:
        return
    _check_index(spec.space - 1, program.spaces, "memory space", f"delegate {spec.name!r}")
    space = program.spaces[spec.space - 1]
    if space.backend != spec.backend:
        _fail(f"its tensors are said to lie in memory of {space.backend!r}", f"delegate {spec.name!r}")


def _check_tensor(tensor: Constant | State, program: Program, where: str) -> None:
    _check_index(tensor.segment, program.segments, "segment", where)
    _check_shape(tensor.shape, tensor.dtype, where)
    need, have = tensor.dtype.itemsize * math.prod(tensor.shape), memoryview(program.segments[tensor.segment]).nbytes
    if need != have:
        shape = list(tensor.shape)
        _fail(f"{tensor.dtype.name}{shape} takes {need} bytes, segment {tensor.segment} has {have}", where)


def _check_shape(shape: Sequence[Dim], dtype: DType, where: str) -> None:
    """A shape is one that an array can have; symbolic sizes are checked when they are known."""
    if len(shape) > MAX_RANK:
        _fail(f"it has {len(shape)} dimensions, more than {MAX_RANK}", where)
    sizes = [d for d in shape if isinstance(d, int)]
    if any(d < 0 for d in sizes):
        _fail(f"the size {min(sizes)} is negative", where)
    if dtype.itemsize * math.prod(d for d in sizes if d) > MAX_TENSOR_BYTES:
        _fail(f"no memory holds {dtype.name}{_sizes(shape)}", where)


class _MethodVerifier:
    """Walks the instructions of one method in the order of execution and keeps which values can be read."""

    def __init__(self, program: Program, method: Method, is_fallback: bool, bounds: Bounds) -> None:
        self._program, self._method, self._is_fallback, self._bounds = program, method, is_fallback, bounds
        self._name = f"method {method.name!r}"
        self._where = self._name
        self._readable = [v.storage.home in _GIVEN for v in method.values]
        self._made = list(self._readable)
        self._owner = list(range(len(method.values)))  # what an alias is a view of, in the end
        self._outputs: set[int] = set()  # that a value has the memory of
        self._branch: _Branch | None = None  # the one that is looked at
        self._checked: set[int] = set()  # identities of expressions: parts are shared, each is walked once

    def verify(self) -> None:
        method = self._method
        self._check_trees()
        for index, value in enumerate(method.values):
            self._where = f"{self._name}, value %{index} {value.name!r}"
            self._check_value(index, value)
        self._check_inputs()
        self._check_symbols()
        self._check_sizes_of_inputs()
        self._instructions(method.instructions, "instruction")
        self._where = f"{self._name}, outputs"
        self._args(method.outputs)
        self._check_outputs()
        self._where = f"{self._name}, guards"
        for guard in method.guards:
            self._expr(guard)
        for index, value in enumerate(method.values):
            if not self._made[index]:
                self._where = f"{self._name}, value %{index} {value.name!r}"
                self._fail("no instruction makes it")

    def _fail(self, what: str) -> None:
        _fail(what, self._where)

    def _index(self, index: int, table: Sequence[object], what: str) -> None:
        _check_index(index, table, what, self._where)

    def _check_trees(self) -> None:
        method = self._method
        for name, tree, leaves in (("in_tree", method.in_tree, method.inputs), ("out_tree", method.out_tree,
                                   method.outputs)):  # fmt: skip
            self._where = f"{self._name}, {name}"
            if (count := self._leaves(tree)) != len(leaves):
                self._fail(f"the tree has {count} leaves for {len(leaves)} {name.removesuffix('_tree')}puts")
        if [c.kind for c in method.in_tree.children] != ["tuple", "dict"]:
            self._where = f"{self._name}, in_tree"
            self._fail("the inputs are not a tuple of arguments and a dict of keyword arguments")

    def _leaves(self, tree: Tree) -> int:
        if tree.kind == "leaf":
            if tree.children:
                self._fail("a leaf has children")
            return 1
        if tree.kind not in _KEYED:
            self._fail(f"no kind of container is named {tree.kind!r}")
        if len(tree.keys) != (len(tree.children) if _KEYED[tree.kind] else 0):
            self._fail(f"a {tree.kind} of {len(tree.children)} parts has {len(tree.keys)} keys")
        if not all(isinstance(k, str | int) for k in tree.keys):
            self._fail(f"a {tree.kind} has keys that are neither text nor integers")
        return sum(self._leaves(c) for c in tree.children)

    def _check_value(self, index: int, value: Value) -> None:
        _check_shape(value.shape, value.dtype, self._where)
        for dim in value.shape:
            if isinstance(dim, Expr):
                self._expr(dim)
        storage = value.storage
        match storage.home:
            case Home.CONSTANT:
                self._index(storage.index, self._program.constants, "constant")
                self._check_like(value, self._program.constants[storage.index])
            case Home.STATE:
                self._index(storage.index, self._program.states, "state")
                self._check_like(value, self._program.states[storage.index])
            case Home.INPUT:
                self._index(storage.index, self._method.inputs, "input")
                if self._method.inputs[storage.index].value != index:
                    self._fail(f"input {storage.index} fills another value")
            case Home.OUTPUT:
                self._index(storage.index, self._method.outputs, "output")
                if storage.index in self._outputs:
                    self._fail(f"output {storage.index} has the memory of two values")
                self._outputs.add(storage.index)
            case Home.ALIAS:
                self._index(storage.index, self._method.values, "value")
            case Home.ARENA:
                self._check_arena(value)

    def _check_like(self, value: Value, tensor: Constant | State) -> None:
        if (value.dtype, value.shape) != (tensor.dtype, tensor.shape):
            found = f"{value.dtype.name}{_sizes(value.shape)}"
            self._fail(f"it is {found}, its tensor {tensor.name!r} is {tensor.dtype.name}{_sizes(tensor.shape)}")

    def _check_arena(self, value: Value) -> None:
        storage = value.storage
        self._index(storage.index, self._method.arenas, "memory space")
        arena = self._method.arenas[storage.index]
        if (storage.offset == -1) != (arena == -1):
            self._fail(f"offset {storage.offset} in an arena of {arena} bytes: both or none are planned per shape")
        if storage.offset == -1:
            return
        if storage.offset < 0 or storage.offset % ALIGNMENT:
            self._fail(f"the offset {storage.offset} is not a multiple of {ALIGNMENT}")
        count = self._bounds.largest_count(value.shape)
        if count is None:
            self._fail("no bound of its size is known, and yet it has an offset")
            return
        end = storage.offset + value.dtype.itemsize * count
        if end > arena:
            self._fail(f"it ends at byte {end} of an arena of {arena} bytes")

    def _check_inputs(self) -> None:
        for index, leaf in enumerate(self._method.inputs):
            self._where = f"{self._name}, input {leaf.name!r}"
            if leaf.literal is not None and not isinstance(leaf.literal, int | float | str):
                self._fail(f"it cannot be a fixed {type(leaf.literal).__name__}")
            if leaf.value == -1:
                continue
            self._index(leaf.value, self._method.values, "value")
            storage = self._method.values[leaf.value].storage
            if (storage.home, storage.index) != (Home.INPUT, index):
                self._fail(f"value %{leaf.value} is not stored as input {index}")
            if leaf.literal is not None:
                self._fail("it is a tensor and a literal at once")

    def _check_outputs(self) -> None:
        """What lies in an output's memory is that output, or the output is a view of it."""
        for number in self._outputs:
            ref = self._method.outputs[number]
            index = self._owner[ref.index] if isinstance(ref, Ref) else -1
            storage = self._method.values[index].storage if index >= 0 else None
            if storage is None or (storage.home, storage.index) != (Home.OUTPUT, number):
                self._fail(f"output {number} does not lie in the memory that is made for it")

    def _check_symbols(self) -> None:
        if len(self._method.symbols) > MAX_SYMBOLS:
            self._fail(f"it has {len(self._method.symbols)} symbols, more than {MAX_SYMBOLS}")
        for symbol in self._method.symbols:
            self._where = f"{self._name}, symbol {symbol.name!r}"
            if symbol.maximum is not None and symbol.minimum > symbol.maximum:
                self._fail(f"its range {symbol.minimum} to {symbol.maximum} is empty")
            if symbol.input == -1:
                self._check_data_symbol(symbol)
                continue
            self._index(symbol.input, self._method.inputs, "input")
            value = self._method.inputs[symbol.input].value
            if value == -1 and symbol.dim == -1:
                continue  # the input is a number, the symbol its value
            self._index(symbol.dim, self._method.values[value].shape if value >= 0 else (), "dimension")

    def _check_sizes_of_inputs(self) -> None:
        """They are compared with the caller's before anything runs, so other inputs have to tell them."""
        symbols, sets = self._method.symbols, SymbolSets()
        late = set_of(i for i, s in enumerate(symbols) if s.input < 0)
        for leaf in self._method.inputs:
            self._where = f"{self._name}, input {leaf.name!r}"
            shape = self._method.values[leaf.value].shape if leaf.value >= 0 else ()
            if unknown := members(late & sets.of(shape)):
                self._fail(f"its shape depends on {symbols[unknown[0]].name!r}, which only data tells")

    def _check_data_symbol(self, symbol: Symbol) -> None:
        self._index(symbol.value, self._method.values, "value")
        if symbol.dim != -1:
            self._index(symbol.dim, self._method.values[symbol.value].shape, "dimension")

    def _instructions(self, instructions: Iterable[Instruction], path: str) -> None:
        for index, call in enumerate(instructions):
            self._where = f"{self._name}, {path} {index}"
            if isinstance(call, KernelCall):
                self._kernel_call(call)
            elif isinstance(call, DelegateCall):
                self._delegate_call(call)
            else:
                self._structured_call(call, f"{path} {index}")

    def _kernel_call(self, call: KernelCall) -> None:
        self._index(call.operator, self._program.operators, "operator")
        if call.source != -1:
            self._index(call.source, self._method.sources, "source")
        across = self._program.operators[call.operator] == COPY_ACROSS
        uploads = across and any(self._on_device(o) for o in call.outputs)
        fetched = int(across and not uploads)
        self._args(call.args[:fetched], None)
        self._args(call.args[fetched:])
        if (number := written_input(self._program, self._method, call)) is not None:
            self._write(Storage(Home.INPUT, number))
            return
        self._check_aliases(call)
        self._make(call.outputs, aliases=True, space=None if uploads else 0)

    def _write(self, storage: Storage) -> None:
        """Note that an instruction writes what was there before."""
        if self._branch is not None:
            self._branch.written.add((storage.home, storage.index))

    def _check_aliases(self, call: KernelCall) -> None:
        """A kernel gives views of its first argument alone: lifetimes count on that."""
        for index in call.outputs:
            self._index(index, self._method.values, "value")
            storage = self._method.values[index].storage
            if storage.home is Home.ALIAS and call.args[:1] != (Ref(storage.index),):
                self._fail(f"%{index} {self._method.values[index].name!r} is an alias of no first argument")

    def _on_device(self, index: int) -> bool:
        self._index(index, self._method.values, "value")
        storage = self._method.values[index].storage
        return storage.home is Home.ARENA and storage.index > 0

    def _delegate_call(self, call: DelegateCall) -> None:
        if self._is_fallback:
            self._fail("a fallback calls a delegate")
        self._index(call.delegate, self._program.delegates, "delegate")
        spec = self._program.delegates[call.delegate]
        self._read(call.inputs, spec.space)
        self._make(call.outputs, aliases=False, space=spec.space)
        if spec.fallback >= 0:
            self._check_fallback(call, self._program.fallbacks[spec.fallback])

    def _check_fallback(self, call: DelegateCall, fallback: Method) -> None:
        """It takes and gives as many tensors as the delegate, of the same dtypes."""
        values = self._method.values
        for what, indices, refs in (
            ("take", call.inputs, [Ref(i.value) for i in fallback.inputs if i.value >= 0]),
            ("give", call.outputs, fallback.outputs),
        ):
            found = [fallback.values[r.index].dtype if isinstance(r, Ref) else None for r in refs]
            if found != [values[i].dtype for i in indices]:
                self._fail(f"the fallback {fallback.name!r} does not {what} what its delegate does")

    def _parallel_call(self, call: StructuredCall, path: str) -> None:
        if self._branch is not None or self._is_fallback:
            inside = "a fallback" if self._is_fallback else "such a branch"
            self._fail(f"branches that may run at the same time stand in {inside}")
        if call.operands or call.carried or call.sequences:
            self._fail("PARALLEL takes no values: its branches read them where they lie")
        if len(call.blocks) < _LEAST_BRANCHES:
            self._fail(f"PARALLEL has {len(call.blocks)} blocks, and needs {_LEAST_BRANCHES}")
        if call.outputs != tuple(o for block in call.blocks for o in block.outputs):
            self._fail("PARALLEL gives other values than its branches do")
        branches: list[_Branch] = []
        for number, block in enumerate(call.blocks):
            self._where = place = f"{self._name}, {path}, block {number}"
            self._branch = _Branch()
            branches.append(self._branch)
            if block.inputs:
                self._fail("the branch takes values: it reads them where they lie")
            self._instructions(block.instructions, f"{path}, block {number}, instruction")
            self._where = place
            self._read(block.outputs)
            made = {o for inner in block.instructions for o in inner.outputs}
            for index in block.outputs:
                if index not in made or self._method.values[index].storage.home in _GIVEN:
                    self._fail(f"the branch gives value %{index}, which it does not make")
            for inner in block.instructions:
                self._forget(inner.outputs)
        self._branch = None
        for index in call.outputs:
            self._readable[index] = True
        self._where = f"{self._name}, {path}"
        self._check_writes(branches)

    def _check_writes(self, branches: Sequence[_Branch]) -> None:
        """What one branch writes that was there before, a state or an input, no other branch reads or writes."""
        touched = Counter(memory for branch in branches for memory in branch.read | branch.written)
        for memory in sorted({m for b in branches for m in b.written}, key=lambda m: (m[0].value, m[1])):
            if touched[memory] > 1:
                self._fail(f"{memory[0].name} {memory[1]} is written in one branch and used in another")

    def _structured_call(self, call: StructuredCall, path: str) -> None:
        if call.kind is Structure.PARALLEL:
            self._parallel_call(call, path)
            return
        self._read(call.operands)
        if len(call.blocks) != _BLOCKS[call.kind]:
            self._fail(f"{call.kind.name} has {len(call.blocks)} blocks, not {_BLOCKS[call.kind]}")
        if not 0 <= call.carried <= len(call.operands):
            self._fail(f"{call.carried} of {len(call.operands)} operands are carried")
        if not 0 <= call.sequences <= len(call.operands) - call.carried:
            self._fail(f"{call.sequences} of {len(call.operands)} operands are sequences")
        if call.sequences and call.kind in (Structure.IF, Structure.WHILE):
            self._fail(f"{call.kind.name} takes no sequences")
        if not call.sequences and call.kind in (Structure.SCAN, Structure.MAP):
            self._fail(f"{call.kind.name} has no sequence to go along")
        if call.carried and call.kind in (Structure.IF, Structure.MAP):
            self._fail(f"{call.kind.name} carries no values")
        if call.carried > len(call.outputs):
            self._fail(f"{call.kind.name} carries {call.carried} values and gives {len(call.outputs)}")
        inputs = len(call.operands) - (call.kind is Structure.IF)
        outputs = [len(call.outputs)] * len(call.blocks)
        if call.kind is Structure.WHILE:
            outputs[0] = 1  # the condition
            if call.carried != len(call.outputs):
                self._fail(f"WHILE carries {call.carried} values and gives {len(call.outputs)}")
        self._make(call.outputs[: call.carried], aliases=False)  # they hold the carried values from turn to turn
        for number, (block, expected) in enumerate(zip(call.blocks, outputs, strict=True)):
            self._where = f"{self._name}, {path}, block {number}"
            if (len(block.inputs), len(block.outputs)) != (inputs, expected):
                given = f"{len(block.inputs)} values and gives {len(block.outputs)}"
                self._fail(f"the block takes {given}, {call.kind.name} needs {inputs} and {expected}")
            self._block(call, block, f"{path}, block {number}, instruction")
        self._where = f"{self._name}, {path}"
        self._make(call.outputs[call.carried :], aliases=False)

    def _block(self, call: StructuredCall, block: Block, path: str) -> None:
        place = self._where
        bases = dict(block_bases(call, block))
        for index in block.inputs:
            self._check_block_input(index, bases.get(index, -1))
        self._make(block.inputs, aliases=True)
        self._instructions(block.instructions, path)
        self._where = place
        self._read(block.outputs)
        for made in block.instructions:
            self._forget(made.outputs)
        self._forget(block.inputs)

    def _check_block_input(self, index: int, base: int) -> None:
        """An alias among a block's inputs is the value that it holds, of the same type."""
        self._index(index, self._method.values, "value")
        values, storage = self._method.values, self._method.values[index].storage
        if storage.home is not Home.ALIAS:
            return
        if storage.index != base:
            self._fail(f"%{index} {values[index].name!r} is an alias of another value than the block gets")
        if (values[index].dtype, values[index].shape) != (values[base].dtype, values[base].shape):
            self._fail(f"%{index} {values[index].name!r} is another type than %{base}, which it is an alias of")

    def _forget(self, values: Iterable[int]) -> None:
        """What a block made cannot be read behind it."""
        for index in values:
            self._readable[index] = self._method.values[index].storage.home in _GIVEN

    def _read(self, values: Iterable[int], space: int | None = 0) -> None:
        """Values are read by what reaches the host's memory and that space; None: any space."""
        for index in values:
            self._index(index, self._method.values, "value")
            if not self._readable[index]:
                self._fail(f"value %{index} {self._method.values[index].name!r} is read before it is made here")
            if self._branch is not None:
                storage = self._method.values[self._owner[index]].storage
                self._branch.read.add((storage.home, storage.index))
            self._check_reach(index, space)

    def _check_reach(self, index: int, space: int | None) -> None:
        """What reaches the host's memory and a memory space of a device reaches no other device; None: all."""
        storage = self._method.values[index].storage
        if (
            space is not None
            and storage.home is Home.ARENA
            and storage.index not in (0, space)
            and storage.index <= len(self._program.spaces)
        ):
            device = self._program.spaces[storage.index - 1]
            name = f"value %{index} {self._method.values[index].name!r}"
            self._fail(f"{name} lies in {device.backend}'s memory {device.name!r}, which is out of reach here")

    def _make(self, values: Iterable[int], *, aliases: bool, space: int | None = 0) -> None:
        for index in values:
            self._index(index, self._method.values, "value")
            value = self._method.values[index]
            name, home = f"value %{index} {value.name!r}", value.storage.home
            if home in _READ_ONLY:
                self._fail(f"{name} is written, but {home.name} is read-only")
            if home is Home.STATE:
                self._write(value.storage)
                continue
            if self._made[index]:
                self._fail(f"{name} is made twice")
            if home is Home.ALIAS:
                if not aliases:
                    self._fail(f"{name} is an alias, which only a kernel or a block can make")
                self._read((value.storage.index,))
                self._owner[index] = self._owner[value.storage.index]
            self._check_reach(index, space)
            self._made[index] = self._readable[index] = True

    def _args(self, args: Iterable[Arg], space: int | None = 0) -> None:
        for arg in args:
            if isinstance(arg, tuple):
                self._args(arg, space)
            elif isinstance(arg, Ref):
                self._read((arg.index,), space)
            elif isinstance(arg, Expr):
                self._expr(arg)

    def _expr(self, expr: Expr) -> None:
        if id(expr) in self._checked:
            return
        if expr.op is Op.SYMBOL:
            self._index(int(expr.value), self._method.symbols, "symbol")
        if len(expr.args) != operands(expr.op):
            self._fail(f"{expr.op.name} has {len(expr.args)} operands")
        for arg in expr.args:
            self._expr(arg)
        self._checked.add(id(expr))


class _Branch:
    """What a branch that may run beside others reads, and what it writes that was there before: home and index."""

    def __init__(self) -> None:
        self.read: set[tuple[Home, int]] = set()
        self.written: set[tuple[Home, int]] = set()


def _sizes(shape: Iterable[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"
