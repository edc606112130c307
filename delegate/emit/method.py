"""One lowered graph -> one method: inputs, instructions, results, new values of states.

A functional graph makes a new tensor for every write to a buffer. If each step from the old value to the new one can
run in place, the steps write to the state itself. Then an update of a key cache costs as much as the new key.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from delegate.edge.node import op_name, tensors
from delegate.edge.program import EdgeInput, EdgeProgram
from delegate.emit.graph import GraphEmitter
from delegate.emit.guards import guards
from delegate.emit.symbols import MethodSymbols
from delegate.emit.tables import SharedTables, Tables
from delegate.errors import LoweringError
from delegate.kernels.selection import Kernels
from delegate.memory.storage import UNPLANNED
from delegate.partitioner.extraction import LoweredProgram
from delegate.program.dtypes import DType
from delegate.program.instructions import COPY, reads, refs, walk
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

_LEAF = Tree("leaf")


def emit_method(lowered: LoweredProgram, shared: SharedTables, kernels: Kernels) -> MethodDefinition:
    """Return the method of a lowered graph, without planned memory.

    Args:
        lowered: a graph in which every partition is one `call_delegate` node.
        shared: the operators, constants, states and delegates of the program; extended.
        kernels: that run the nodes outside of partitions.

    Raises:
        LoweringError: an operator has no kernel for its dtypes, or a size does not follow from the inputs' shapes.
    """
    return _MethodEmitter(lowered, shared, kernels).emit()


def emit_inputs(edge: EdgeProgram, kernels: Kernels) -> MethodDefinition:
    """Return a method with only its inputs, which is enough to check arguments."""
    return _MethodEmitter(LoweredProgram(edge, {}), SharedTables(), kernels).emit_inputs()


class _MethodEmitter:
    def __init__(self, lowered: LoweredProgram, shared: SharedTables, kernels: Kernels) -> None:
        self.edge: EdgeProgram = lowered.program
        self.placeholders = {n.name: n for n in self.edge.graph.nodes if n.op == "placeholder"}
        self.user_nodes = [self.placeholders[i.node] for i in self.edge.inputs]
        self.examples = [
            None if i.is_literal else n.meta["val"] for i, n in zip(self.edge.inputs, self.user_nodes, strict=True)
        ]
        names = [i.name for i in self.edge.inputs]
        self.tables = Tables(MethodSymbols(self.examples, self.edge.range_constraints, names), shared, kernels)
        self.graph = GraphEmitter(self.tables, lowered.delegates, self._place_value, reads_data=True)
        self.input_values: dict[Node, int] = {}

    def emit(self) -> MethodDefinition:
        inputs = tuple(self._input(i, leaf) for i, leaf in enumerate(self.edge.inputs))
        results = self.graph.emit(self.edge.graph)
        self.tables.require_kernels()
        count = len(results) - len(self.edge.mutated) - len(self.edge.written)
        outputs = tuple(self._result(r) for r in results[:count])
        self._write(results[count:], outputs)
        self.tables.require_kernels()
        sizes = {i.name: e for i, e in zip(self.edge.inputs, self.examples, strict=True)}
        symbols = self.tables.symbols
        conditions = (*self.edge.guards, *self.graph.guards)
        assumed = guards(conditions, sizes, symbols, self.tables.shared.warnings.append)
        return MethodDefinition(
            name=self.edge.name,
            inputs=inputs,
            outputs=outputs,
            in_tree=tree_of(self.edge.in_spec),
            out_tree=tree_of(self.edge.out_spec),
            values=tuple(self.tables.values),
            instructions=tuple(self.graph.instructions),
            symbols=tuple(symbols.table),
            arenas=(-1,),
            sources=tuple(self.tables.sources),
            guards=tuple(dict.fromkeys((*symbols.equal, *assumed))),
        )

    def emit_inputs(self) -> MethodDefinition:
        inputs = tuple(self._input(i, leaf) for i, leaf in enumerate(self.edge.inputs))
        trees = (tree_of(self.edge.in_spec), tree_of(self.edge.out_spec))
        values, symbols = tuple(self.tables.values), tuple(self.tables.symbols.table)
        return MethodDefinition(self.edge.name, inputs, (), *trees, values, (), symbols)

    def _input(self, number: int, leaf: EdgeInput) -> Input:
        if leaf.is_literal:
            return Input(leaf.name, -1, leaf.literal)
        node = self.user_nodes[number]
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return Input(leaf.name, -1)
        if not isinstance(value, torch.Tensor):
            raise LoweringError(
                f"input {leaf.name!r} is a dynamic {type(value).__name__}",
                remedy="export it as a tensor, or as a constant",
            )
        self.input_values[node] = self.tables.define(node, Storage(StorageKind.INPUT, number))[0]
        return Input(leaf.name, self.input_values[node])

    def _place_value(self, node: Node) -> int:
        """Return the value of a placeholder; values of constants and states are added when first used."""
        if node in self.input_values:
            return self.input_values[node]
        tensor = self.edge.constants[node.name]
        if node.name in self.edge.states:
            state = self.tables.shared.state(self.edge.states[node.name], tensor)
            return self.tables.define(node, Storage(StorageKind.STATE, state))[0]
        name, shared = self.edge.constant_names.get(node.name, node.name), self.tables.shared
        small = shared.pack(tensor)
        if small is None:
            return self.tables.define(node, Storage(StorageKind.CONSTANT, shared.constant(name, tensor)))[0]
        storage = Storage(StorageKind.CONSTANT, shared.constant(name, small))
        source = self.tables.add(Value(f"{node.name} (packed)", DType.uint8, tuple(small.shape), storage))
        unpacked = self.tables.define(node, UNPLANNED)[0]
        self.graph.kernel_call("joined.unpack.default", (Ref(source),), (unpacked,), node)
        return unpacked

    def _result(self, result: Any) -> Arg:
        if isinstance(result, Node) and isinstance(result.meta.get("val"), torch.Tensor):
            return Ref(self._lasting(result))
        return self.graph.argument(result, result if isinstance(result, Node) else self.edge.graph.output_node())

    def _write(self, new_values: Sequence[Any], outputs: Sequence[Arg]) -> None:
        """Write the new values of states and inputs: states in place if possible, the others after all instructions."""
        states = {name: self.placeholders[p] for p, name in self.edge.states.items()}
        targets = [*(states[name] for name in self.edge.mutated), *(self.placeholders[p] for p in self.edge.written)]
        old_values = [self.graph.value(node) for node in targets]
        updates = {old: self._lasting(node) for old, node in zip(old_values, new_values, strict=True)}
        nodes = dict(zip(old_values, new_values, strict=True))
        for old in update_in_place(self.tables, self.graph.instructions, outputs, updates):
            value, updated = self.tables.values[old], old
            if value.storage.kind is StorageKind.STATE:
                updated = self.tables.add(value._replace(name=f"{value.name} (updated)"))
            self.graph.kernel_call(COPY, (Ref(old), Ref(updates[old]), False), (updated,), nodes[old])

    def _lasting(self, node: Node) -> int:
        """Return the node's value, or a copy if its memory may be written before the caller reads it."""
        return self.graph.clone(node) if self._will_change(node) else self.graph.value(node)

    def _will_change(self, node: Node) -> bool:
        while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
            if node.target is not operator.getitem and not self.tables.is_view(op_name(node), tensors(node)):
                return False
            node = node.args[0]
        return node.op == "placeholder" and (node.name in self.edge.states or node.name in self.edge.written)


def tree_of(spec: Any) -> Tree:
    """Return the tree of a torch TreeSpec; a registered class becomes a "record" of its named fields."""
    if spec.is_leaf():
        return _LEAF
    children = tuple(map(tree_of, spec.children()))
    if spec.type in (dict, OrderedDict):
        return Tree("dict", tuple(k if isinstance(k, int) else str(k) for k in spec.context), children)
    if spec.type in (tuple, list):
        return Tree(spec.type.__name__, (), children)
    if isinstance(spec.context, type) and hasattr(spec.context, "_fields"):
        return Tree("namedtuple", tuple(spec.context._fields), children, _full_name(spec.context))
    fields = getattr(spec.type, "__match_args__", ())
    if issubclass(spec.type, tuple) and len(fields) == len(children) > 0:  # of torch.return_types
        return Tree("namedtuple", tuple(fields), children, _full_name(spec.type))
    names = _field_names(spec.context, len(children))
    return Tree("record" if names else "tuple", names, children, _full_name(spec.type))


def _field_names(context: Any, count: int) -> tuple[str, ...]:
    """Return the field names in the context of a flattened class: the context itself, or its first element."""
    for names in (context, context[0] if isinstance(context, tuple | list) and context else None):
        if isinstance(names, tuple | list) and len(names) == count and all(isinstance(n, str) for n in names):
            return tuple(names)
    return ()


def _full_name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}".lstrip(".")


def update_in_place(
    tables: Tables, instructions: Sequence[Instruction], results: Iterable[Arg], updates: Mapping[int, int]
) -> list[int]:
    """Move new values into their states, in `tables`; return the old values whose updates must be copied.

    Args:
        tables: tables of the method; its kernels declare if they run in place.
        instructions: the instructions of the method, without the copies of updates.
        results: results of the method.
        updates: the value of every mutated state or input at the start of the method -> its new value at the end.
    """
    reads = _Reads(tables, instructions, [*refs(results), *updates.values()])
    return [old for old, new in updates.items() if not _move(tables, instructions, reads, old, new)]


def _move(tables: Tables, instructions: Sequence[Instruction], reads: _Reads, old: int, new: int) -> bool:
    """Move as many last steps of an update as possible into the state; return true if the update needs no copy."""
    if tables.values[old].storage.kind is not StorageKind.STATE:
        return False
    written = list(_way_back(tables, instructions, reads, old, new))
    while written:
        place = reads.computed_at[written[-1]]
        if reads.is_free(old, place, _in_place(tables, instructions[place], old)):
            for index in written:
                tables.values[index] = tables.values[index]._replace(storage=tables.values[old].storage)
            return True
        written.pop()
    return False


def _way_back(tables: Tables, instructions: Sequence[Instruction], reads: _Reads, old: int, new: int) -> Iterator[int]:
    """Yield the values that could use the state's memory, the last one first; each is in place on its predecessor."""
    state, value = tables.values[old], new
    while value in reads.computed_at:
        result = tables.values[value]
        place = reads.computed_at[value]
        call = instructions[place]
        fits = (result.dtype, result.shape) == (state.dtype, state.shape) and result.storage.kind is StorageKind.ARENA
        if not fits or isinstance(call, StructuredCall) or reads.owner[value] != value:
            return
        yield value
        first = _first(call)
        if first is None or not reads.is_free(first, place, _in_place(tables, call, first)):
            return
        value = first


def _first(call: Instruction) -> int | None:
    """Return the value that is the first argument of a kernel; None for another instruction."""
    first = call.args[0] if isinstance(call, KernelCall) and call.args else None
    return first.index if isinstance(first, Ref) else None


def _in_place(tables: Tables, call: Instruction, value: int) -> bool:
    """Return true if the instruction may write its result to this value, which must only be its first argument."""
    if not isinstance(call, KernelCall) or _first(call) != value or len(call.outputs) != 1:
        return False
    kernel = tables.kernel_of(call)
    return kernel is not None and kernel.in_place


class _Reads:
    """The readers, the writer and the memory owner of each value of a method's instructions.

    A read inside control flow counts as a read by the control flow itself.

    Args:
        at_end: values that are read after the last instruction.
    """

    def __init__(self, tables: Tables, instructions: Sequence[Instruction], at_end: Iterable[int]) -> None:
        states: dict[int, int] = {}
        self.owner = list(range(len(tables.values)))
        self.computed_at: dict[int, int] = {}
        self._readers: dict[int, list[tuple[int, int]]] = {}  # owner -> (place, value that is read)
        for index, value in enumerate(tables.values):
            if value.storage.kind is StorageKind.STATE:
                self.owner[index] = states.setdefault(value.storage.index, index)
        for place, call in enumerate(instructions):
            self._read(place, _read_by(call))
            for output in call.outputs:
                self.computed_at[output] = place
            if isinstance(call, KernelCall) and (kernel := tables.kernel_of(call)) and kernel.is_view:
                base = _first(call)
                assert base is not None
                for output in call.outputs:
                    self.owner[output] = self.owner[base]
        self._read(len(instructions), at_end)

    def _read(self, place: int, values: Iterable[int]) -> None:
        for value in values:
            self._readers.setdefault(self.owner[value], []).append((place, value))

    def is_free(self, value: int, place: int, in_place: bool) -> bool:
        """Return true if the instruction at `place` may overwrite the memory of a value: nothing reads it later.

        Args:
            in_place: true if that instruction itself may read the value, once.
        """
        late = [read for read in self._readers.get(self.owner[value], ()) if read[0] >= place]
        return not late or (in_place and late == [(place, value)])


def _read_by(call: Instruction) -> Iterator[int]:
    """Yield all values that an instruction reads, also inside blocks."""
    for each in walk((call,)):
        yield from reads(each)
        if isinstance(each, StructuredCall):
            yield from (output for block in each.blocks for output in block.outputs)
