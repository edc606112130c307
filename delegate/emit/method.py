"""One lowered graph -> one Method: values, instructions, results."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from delegate.edge.node import arguments, describe, dtype_of, op_name, source_line, tensors
from delegate.edge.program import EdgeProgram
from delegate.emit.pools import Pools
from delegate.emit.symbols import Symbols
from delegate.emit.trees import tree_of
from delegate.errors import LoweringError
from delegate.partitioner.cut import LoweredDelegate, LoweredProgram, call_delegate
from delegate.program.lifetimes import refs
from delegate.program.model import (
    Arg,
    DelegateCall,
    Home,
    Input,
    Instruction,
    KernelCall,
    Method,
    Ref,
    Storage,
    Value,
)
from delegate.runtime.kernels import Kernels
from delegate.runtime.storage import UNPLANNED

_CLONE = "aten.clone.default"
_COPY = "aten.copy.default"


def emit_method(lowered: LoweredProgram, pools: Pools, kernels: Kernels) -> Method:
    """The method of a lowered graph, its memory not planned yet.

    Args:
        lowered: a graph where every partition is one `call_delegate` node.
        pools: where operators, constants, states and delegates of the program are collected.
        kernels: the kernels that what is left will run on.

    Raises:
        LoweringError: an operator has no kernel for its dtypes, or a size cannot be known from the inputs' shapes.
    """
    return _MethodEmitter(lowered.program, lowered.delegates, pools, kernels).emit()


class _MethodEmitter:
    def __init__(
        self,
        edge: EdgeProgram,
        delegates: Mapping[str, LoweredDelegate],
        pools: Pools,
        kernels: Kernels,
    ) -> None:
        self.edge, self.delegates, self.pools, self.kernels = edge, delegates, pools, kernels
        self.placeholders = {n.name: n for n in edge.graph.nodes if n.op == "placeholder"}
        self.user_nodes = [self.placeholders[i.node] for i in edge.inputs]
        examples = [next(iter(tensors(n)), None) for n in self.user_nodes]
        self.symbols = Symbols(examples, edge.range_constraints)
        self.values: list[Value] = []
        self.indices: dict[Node, list[int]] = {}
        self.instructions: list[Instruction] = []
        self.sources: dict[str, int] = {}
        self.no_kernel: list[str] = []

    def emit(self) -> Method:
        inputs = tuple(self._input(i, given.name, given) for i, given in enumerate(self.edge.inputs))
        for node in self.edge.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                raise LoweringError("control flow cannot be lowered yet", where=describe(next(iter(node.users), node)))
        self._require_kernels()
        results = _output_node(self.edge).args[0]
        assert isinstance(results, Sequence)
        mutated = len(self.edge.mutated)
        user_results = results[: len(results) - mutated]
        outputs = tuple(self._result(r) for r in user_results)
        self._update_states(results[len(results) - mutated :])
        return Method(
            name=self.edge.name,
            inputs=inputs,
            outputs=outputs,
            in_tree=tree_of(self.edge.in_spec),
            out_tree=tree_of(self.edge.out_spec),
            values=tuple(self.values),
            instructions=tuple(self.instructions),
            symbols=tuple(self.symbols.table),
            arenas=(-1,),
            sources=tuple(self.sources),
        )

    def _input(self, number: int, name: str, given: Any) -> Input:
        if given.is_literal:
            return Input(name, -1, given.literal)
        node = self.user_nodes[number]
        if not isinstance(node.meta.get("val"), torch.Tensor):
            raise LoweringError(
                f"input {name!r} is a dynamic number", remedy="export it as a tensor, or as a fixed number"
            )
        return Input(name, self._define(node, Storage(Home.INPUT, number))[0])

    def _define(self, node: Node, storage: Storage) -> list[int]:
        """New values for all tensors that a node gives."""
        made = tensors(node)
        first = len(self.values)
        for i, fake in enumerate(made):
            dtype = dtype_of(fake.dtype)
            if dtype is None:
                raise LoweringError(f"programs hold no tensors of {fake.dtype}", where=describe(node))
            shape = tuple(self.symbols.dim(s, node.name) for s in fake.shape)
            name = node.name if len(made) == 1 else f"{node.name}.{i}"
            self.values.append(Value(name, dtype, shape, storage))
        self.indices[node] = list(range(first, len(self.values)))
        return self.indices[node]

    def _value(self, node: Node) -> int:
        """The one value of a node; constants and states get theirs when first used."""
        if node not in self.indices:
            if node.name in self.edge.states:
                index = self.pools.state(self.edge.states[node.name], self.edge.constants[node.name])
                self._define(node, Storage(Home.STATE, index))
            elif node.name in self.edge.constants:
                name = self.edge.constant_names.get(node.name, node.name)
                index = self.pools.constant(name, self.edge.constants[node.name])
                self._define(node, Storage(Home.CONSTANT, index))
            else:
                raise LoweringError("a value is used before it is made", where=describe(node))
        return self.indices[node][0]

    def _call(self, node: Node) -> None:
        if node.target is operator.getitem:
            producer, position = node.args
            assert isinstance(producer, Node)
            assert isinstance(position, int)
            if producer in self.indices:  # a getitem of a list of numbers makes no value
                self.indices[node] = [self.indices[producer][position]]
        elif node.target is call_delegate:
            self._delegate_call(node)
        elif tensors(node):
            self._kernel_call(node)
        # What gives only numbers needs no instruction: sizes are expressions over the inputs' shapes.

    def _delegate_call(self, node: Node) -> None:
        name, *given = node.args
        delegate = self.delegates[str(name)]
        inputs = tuple(self._value(n) for n in given if isinstance(n, Node))
        outputs = tuple(self._define(node, UNPLANNED))
        index = self.pools.delegate(str(name), delegate.backend, delegate.result)
        self.instructions.append(DelegateCall(index, inputs, outputs))

    def _kernel_call(self, node: Node) -> None:
        if not isinstance(node.target, OpOverload):
            raise LoweringError(f"{op_name(node)} is no operator that programs have", where=describe(node))
        args = tuple(self._arg(a, node) for a in arguments(node).values())
        outputs = tuple(self._define(node, UNPLANNED))
        self._append(op_name(node), args, outputs, node)

    def _append(self, op: str, args: tuple[Arg, ...], outputs: tuple[int, ...], node: Node) -> None:
        line = source_line(node)
        source = self.sources.setdefault(line, len(self.sources)) if line else -1
        dtypes = {self.values[i].dtype for i in (*refs(args), *outputs)}
        if self.kernels.find(op, dtypes) is None:
            self.no_kernel.append(f"{op} for {', '.join(sorted(t.name for t in dtypes))} ({describe(node)})")
        self.instructions.append(KernelCall(self.pools.operator(op), args, outputs, source))

    def _require_kernels(self) -> None:
        if self.no_kernel:
            more = f" and {len(self.no_kernel) - 1} more" if len(self.no_kernel) > 1 else ""
            raise LoweringError(
                f"no backend took, and no kernel runs, {self.no_kernel[0]}{more}",
                remedy="register a kernel through the entry-point group delegate.kernels, or change the model",
            )

    def _arg(self, arg: Any, node: Node) -> Arg:
        if isinstance(arg, Node):
            value = arg.meta.get("val")
            return Ref(self._value(arg)) if isinstance(value, torch.Tensor) else self._number(value, node)
        if isinstance(arg, list | tuple):
            return tuple(self._arg(a, node) for a in arg)
        if isinstance(arg, torch.dtype):
            return self._dtype(arg, node)
        if isinstance(arg, torch.device | torch.layout | torch.memory_format):
            return None
        return self._number(arg, node)

    def _number(self, value: Any, node: Node) -> Arg:
        if isinstance(value, torch.SymInt):
            return self.symbols.dim(value, describe(node))
        if isinstance(value, torch.SymFloat | torch.SymBool):
            constant = value.node.maybe_as_float() if isinstance(value, torch.SymFloat) else value.node.maybe_as_bool()
            if constant is None:
                raise LoweringError(
                    f"the number {value} depends on the inputs' shapes and is no size", where=describe(node)
                )
            return bool(constant) if isinstance(value, torch.SymBool) else float(constant)
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        raise LoweringError(
            f"an argument is a {type(value).__name__}, which programs cannot hold", where=describe(node)
        )

    def _dtype(self, dtype: torch.dtype, node: Node) -> Arg:
        found = dtype_of(dtype)
        if found is None:
            raise LoweringError(f"programs hold no tensors of {dtype}", where=describe(node))
        return found

    def _result(self, result: Any) -> Arg:
        if isinstance(result, Node):
            value = result.meta.get("val")
            if isinstance(value, torch.Tensor):
                index = self._value(result)
                return Ref(self._cloned(index, result) if self._lies_in_state(result) else index)
            return self._number(value, result)
        return self._number(result, _output_node(self.edge))

    def _update_states(self, new_values: Sequence[Any]) -> None:
        """Last of all, the mutated states take their new values."""
        sources = [
            self._value(n) if not self._lies_in_state(n) else self._cloned(self._value(n), n) for n in new_values
        ]
        placeholder_of = {name: self.placeholders[p] for p, name in self.edge.states.items()}
        for name, source, node in zip(self.edge.mutated, sources, new_values, strict=True):
            old = self._value(placeholder_of[name])
            self.values.append(replace(self.values[old], name=f"{name} (updated)"))
            self._append(_COPY, (Ref(old), Ref(source), False), (len(self.values) - 1,), node)
        self._require_kernels()

    def _lies_in_state(self, node: Node) -> bool:
        """Whether the value may share memory with a state, which will change before the caller sees the value."""
        while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
            dtypes = {d for t in tensors(node) if (d := dtype_of(t.dtype))}
            kernel = self.kernels.find(op_name(node), dtypes)
            if node.target is not operator.getitem and (kernel is None or not kernel.is_view):
                return False
            node = node.args[0]
        return node.op == "placeholder" and node.name in self.edge.states

    def _cloned(self, index: int, node: Node) -> int:
        self.values.append(replace(self.values[index], name=f"{node.name} (copy)", storage=UNPLANNED))
        self._append(_CLONE, (Ref(index), None), (len(self.values) - 1,), node)
        return len(self.values) - 1


def _output_node(edge: EdgeProgram) -> Node:
    return edge.graph.output_node()
