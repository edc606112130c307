"""Checks of a method's declarations: trees, values and their storage, inputs, symbols, guards."""

from __future__ import annotations

from delegate.program.alignment import ALIGNMENT
from delegate.program.bounds import Bounds
from delegate.program.checks import Checker, check_shape, sizes_text
from delegate.program.expr import Expr, SymbolSets, members, set_of
from delegate.program.limits import MAX_SYMBOLS
from delegate.program.model import Constant, Method, Program, State, StorageKind, Symbol, Tree, Value

_KEYED = {"tuple": False, "list": False, "dict": True, "namedtuple": True, "record": True}  # kinds of trees


class DeclarationChecker(Checker):
    """Checks of everything in a method but its instructions.

    Attributes:
        outputs: the numbers of the outputs whose memory a value uses.
    """

    def __init__(self, program: Program, method: Method, bounds: Bounds) -> None:
        super().__init__(program, method)
        self._bounds = bounds
        self.outputs: set[int] = set()

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
            self.fail("the inputs are not a tuple of arguments and a dict of keyword arguments")

    def _leaves(self, tree: Tree) -> int:
        if tree.kind == "leaf":
            if tree.children:
                self.fail("a leaf has children")
            return 1
        if tree.kind not in _KEYED:
            self.fail(f"no kind of container is named {tree.kind!r}")
        if len(tree.keys) != (len(tree.children) if _KEYED[tree.kind] else 0):
            self.fail(f"a {tree.kind} of {len(tree.children)} parts has {len(tree.keys)} keys")
        if not all(isinstance(k, str | int) for k in tree.keys):
            self.fail(f"a {tree.kind} has keys that are neither text nor integers")
        return sum(self._leaves(c) for c in tree.children)

    def _check_value(self, index: int, value: Value) -> None:
        check_shape(value.shape, value.dtype, self.where)
        for dim in value.shape:
            if isinstance(dim, Expr):
                self.expr(dim)
        storage = value.storage
        match storage.kind:
            case StorageKind.CONSTANT:
                self.index(storage.index, self.program.constants, "constant")
                self._check_like(value, self.program.constants[storage.index])
            case StorageKind.STATE:
                self.index(storage.index, self.program.states, "state")
                self._check_like(value, self.program.states[storage.index])
            case StorageKind.INPUT:
                self.index(storage.index, self.method.inputs, "input")
                if self.method.inputs[storage.index].value != index:
                    self.fail(f"input {storage.index} fills another value")
            case StorageKind.OUTPUT:
                self.index(storage.index, self.method.outputs, "output")
                if storage.index in self.outputs:
                    self.fail(f"output {storage.index} has the memory of two values")
                self.outputs.add(storage.index)
            case StorageKind.ALIAS:
                self.index(storage.index, self.method.values, "value")
            case StorageKind.ARENA:
                self._check_arena(value)

    def _check_like(self, value: Value, tensor: Constant | State) -> None:
        if (value.dtype, value.shape) != (tensor.dtype, tensor.shape):
            actual = f"{value.dtype.name}{sizes_text(value.shape)}"
            self.fail(f"it is {actual}, its tensor {tensor.name!r} is {tensor.dtype.name}{sizes_text(tensor.shape)}")

    def _check_arena(self, value: Value) -> None:
        storage = value.storage
        self.index(storage.index, self.method.arenas, "memory space")
        arena = self.method.arenas[storage.index]
        if (storage.offset == -1) != (arena == -1):
            self.fail(f"offset {storage.offset} in an arena of {arena} bytes: both or none are planned per shape")
        if storage.offset == -1:
            return
        if storage.offset < 0 or storage.offset % ALIGNMENT:
            self.fail(f"the offset {storage.offset} is not a multiple of {ALIGNMENT}")
        count = self._bounds.largest_count(value.shape)
        if count is None:
            self.fail("no bound of its size is known, and yet it has an offset")
            return
        end = storage.offset + value.dtype.itemsize * count
        if end > arena:
            self.fail(f"it ends at byte {end} of an arena of {arena} bytes")

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
                self.fail("it is a tensor and a literal at once")

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
        late = set_of(i for i, s in enumerate(symbols) if s.input < 0)
        for leaf in self.method.inputs:
            self.where = f"{self.name}, input {leaf.name!r}"
            shape = self.method.values[leaf.value].shape if leaf.value >= 0 else ()
            if unknown := members(late & sets.of(shape)):
                self.fail(f"its shape depends on {symbols[unknown[0]].name!r}, which only data tells")

    def _check_data_symbol(self, symbol: Symbol) -> None:
        self.index(symbol.value, self.method.values, "value")
        if symbol.dim != -1:
            self.index(symbol.dim, self.method.values[symbol.value].shape, "dimension")
