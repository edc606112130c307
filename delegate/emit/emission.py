"""What the nodes of a graph have become so far: values in the method's table, and instructions that make them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from delegate.edge.node import SYMBOLIC, describe
from delegate.emit.tables import Tables
from delegate.errors import LoweringError
from delegate.program.model import Arg, Instruction, Ref
from delegate.runtime.storage import UNPLANNED

_CLONE = "aten.clone.default"


class Emission(ABC):
    """The values and instructions of one graph.

    Args:
        tables: of the method.
        placed: gives the value of a placeholder when it is first used; only its index counts.
        reads_data: whether sizes and numbers may depend on data here: not inside control flow.
    """

    def __init__(self, tables: Tables, placed: Callable[[Node], int], *, reads_data: bool) -> None:
        self.tables, self.reads_data = tables, reads_data
        self.instructions: list[Instruction] = []
        self._placed = placed
        self._indices: dict[Node, list[int]] = {}

    @abstractmethod
    def emit(self, graph: Graph) -> Sequence[Any]:
        """Emit all nodes; gives the graph's results, as they stand in its output node."""

    @abstractmethod
    def nested(self, placed: Callable[[Node], int]) -> Emission:
        """That of a graph inside this one: its instructions are a list of their own."""

    def value(self, node: Node) -> int:
        """The one value of a node."""
        if node not in self._indices:
            if node.op != "placeholder":
                raise LoweringError("a value is used before it is made", where=describe(node))
            self._indices[node] = [self._placed(node)]
        return self._indices[node][0]

    def place(self, node: Node, indices: Sequence[int]) -> None:
        """Say which values hold the results of a node, one for each; -1 where a result is nothing."""
        self._indices[node] = list(indices)
        if self.reads_data and len(indices) == 1:
            self.tables.symbols.offer(node.meta.get("val"), indices[0])

    def has_value(self, node: Node) -> bool:
        """Whether a value holds what the node gives: a tensor, or a number that is known only when it runs."""
        return node in self._indices

    def clone(self, node: Node) -> int:
        """A copy of a node's value, made here."""
        index = self.value(node)
        copy = self.tables.add(self.tables.values[index]._replace(name=f"{node.name} (copy)", storage=UNPLANNED))
        self.kernel_call(_CLONE, (Ref(index), None), (copy,), node)
        return copy

    def kernel_call(self, op: str, args: tuple[Arg, ...], outputs: tuple[int, ...], node: Node) -> None:
        """Call a kernel here, on behalf of a node."""
        self.instructions.append(self.tables.kernel_call(op, args, outputs, node))

    def argument(self, arg: Any, node: Node) -> Arg:
        """An argument of a node, or a result of its graph, as programs hold it.

        Raises:
            LoweringError: programs do not hold such arguments.
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
        """New values for what a node gives."""
        made = self.tables.define(node, UNPLANNED)
        self._indices[node], given = made, node.meta.get("val")
        if isinstance(given, tuple | list) and len(made) < len(given):  # a gradient that nobody wants is None
            left = iter(made)
            self._indices[node] = [next(left) if isinstance(value, torch.Tensor) else -1 for value in given]
        return tuple(made)

    def _number(self, value: Any, node: Node) -> Arg:
        if isinstance(value, SYMBOLIC):
            return self.tables.symbols.number(value, describe(node))
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        raise LoweringError(
            f"an argument is a {type(value).__name__}, which programs cannot hold", where=describe(node)
        )
