"""The values of a graph's nodes in the method's table, and the instructions that compute them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from delegate.edge.node import SYMBOLIC, describe
from delegate.emit.tables import Tables
from delegate.errors import LoweringError
from delegate.memory.storage import UNPLANNED
from delegate.program.model import Arg, Instruction, Ref

_CLONE = "aten.clone.default"


class GraphBuilder(ABC):
    """The values and instructions of one graph.

    Args:
        tables: of the method.
        placed: returns the index of a placeholder's value when it is first used.
        reads_data: True if sizes and numbers may depend on data, False inside control flow.
    """

    def __init__(self, tables: Tables, placed: Callable[[Node], int], *, reads_data: bool) -> None:
        self.tables, self.reads_data = tables, reads_data
        self.instructions: list[Instruction] = []
        self._placed = placed
        self._indices: dict[Node, list[int]] = {}

    @abstractmethod
    def emit(self, graph: Graph) -> Sequence[Any]:
        """Emit all nodes; return the graph's results as in its output node."""

    @abstractmethod
    def nested(self, placed: Callable[[Node], int]) -> GraphBuilder:
        """Return a builder for a graph inside this one, with a separate list of instructions."""

    def value(self, node: Node) -> int:
        """Return the index of a node's only value."""
        if node not in self._indices:
            if node.op != "placeholder":
                raise LoweringError("a value is used before it is made", where=describe(node))
            self._indices[node] = [self._placed(node)]
        return self._indices[node][0]

    def place(self, node: Node, indices: Sequence[int]) -> None:
        """Set the values of a node's results, one for each; -1 for a result None."""
        self._indices[node] = list(indices)
        if self.reads_data and len(indices) == 1:
            self.tables.symbols.register(node.meta.get("val"), indices[0])

    def has_value(self, node: Node) -> bool:
        """Return if a value holds the result of the node: a tensor, or a number that is known only at run time."""
        return node in self._indices

    def clone(self, node: Node) -> int:
        """Emit a copy of a node's value; return its index."""
        index = self.value(node)
        copy = self.tables.add(self.tables.values[index]._replace(name=f"{node.name} (copy)", storage=UNPLANNED))
        self.kernel_call(_CLONE, (Ref(index), None), (copy,), node)
        return copy

    def kernel_call(self, op: str, args: tuple[Arg, ...], outputs: tuple[int, ...], node: Node) -> None:
        """Emit the call of a kernel for a node."""
        self.instructions.append(self.tables.kernel_call(op, args, outputs, node))

    def argument(self, arg: Any, node: Node) -> Arg:
        """Return an argument of a node, or a result of its graph, in the form of programs.

        Raises:
            LoweringError: programs have no such arguments.
        """
        if isinstance(arg, Node):
            value = arg.meta.get("val")
            return Ref(self.value(arg)) if isinstance(value, torch.Tensor) else self._number(value, node)
        if isinstance(arg, list | tuple):
            return tuple(self.argument(a, node) for a in arg)
        if isinstance(arg, torch.dtype):
            return self.tables.dtype(arg, node)
        if isinstance(arg, torch.device | torch.layout | torch.memory_format):
            return None
        return self._number(arg, node)

    def define(self, node: Node) -> tuple[int, ...]:
        """Add values for the results of a node."""
        indices = self.tables.define(node, UNPLANNED)
        self._indices[node], results = indices, node.meta.get("val")
        if isinstance(results, tuple | list) and len(indices) < len(results):  # a gradient that is not needed is None
            remaining = iter(indices)
            self._indices[node] = [next(remaining) if isinstance(value, torch.Tensor) else -1 for value in results]
        return tuple(indices)

    def _number(self, value: Any, node: Node) -> Arg:
        if isinstance(value, SYMBOLIC):
            return self.tables.symbols.number(value, describe(node))
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        raise LoweringError(
            f"an argument is a {type(value).__name__}, which programs cannot hold", where=describe(node)
        )
