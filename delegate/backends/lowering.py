"""The table of a backend: one row per operator holds its support check and its lowering."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch.fx import Node

from delegate.backends.aot import Backend
from delegate.edge.node import arguments, op_name, results_used, tensors
from delegate.verdict import YES, Reason, Verdict, no

Context = TypeVar("Context")


@dataclass(frozen=True, slots=True)
class Lowering(Generic[Context]):
    """A row of the table.

    Args:
        op: e.g. "aten.linear.default".
        check: whether this node can be lowered, with the reason if not; it must say no to whatever `lower` cannot do.
        lower: adds the node to the vendor's model that the context builds.
        keep: the operator is not core ATen: it is kept whole for this row while partitioning is decided.
    """

    op: str
    check: Callable[[Node], Verdict]
    lower: Callable[[Context, Node], None]
    keep: bool = False


class LoweringTable(Generic[Context]):
    """The rows of a backend, each operator at most once."""

    def __init__(self) -> None:
        self._rows: dict[str, Lowering[Context]] = {}

    def add(self, row: Lowering[Context]) -> None:
        """Add a row; raises ValueError if the operator has one."""
        if row.op in self._rows:
            raise ValueError(f"two lowerings of {row.op}")
        self._rows[row.op] = row

    def lowers(
        self, *ops: str, check: Callable[[Node], Verdict], keep: bool = False
    ) -> Callable[[Callable[[Context, Node], None]], Callable[[Context, Node], None]]:
        """Decorator: the function lowers these operators where `check` says yes."""

        def register(function: Callable[[Context, Node], None]) -> Callable[[Context, Node], None]:
            for op in ops:
                self.add(Lowering(op, check, function, keep))
            return function

        return register

    def get(self, op: str) -> Lowering[Context] | None:
        """The row of an operator."""
        return self._rows.get(op)

    def __getitem__(self, op: str) -> Lowering[Context]:
        return self._rows[op]

    def __iter__(self) -> Iterator[Lowering[Context]]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)


def conditions(check: Callable[[Node], Verdict]) -> tuple[str, ...]:
    """What a check asks of a node, for people: the first paragraph of its docstring, a condition a line."""
    first, _, _ = inspect.cleandoc(check.__doc__ or "").partition("\n\n")
    return tuple(first.splitlines())


def every(*checks: Callable[[Node], Verdict]) -> Callable[[Node], Verdict]:
    """A check that says yes where all of these do; else the first refusal."""

    def check(node: Node) -> Verdict:
        for one in checks:
            verdict = one(node)
            if not verdict:
                return verdict
        return YES

    check.__doc__ = "\n".join(condition for one in checks for condition in conditions(one))
    return check


def anything(node: Node) -> Verdict:
    """Any arguments."""
    return YES


def first_result_only(node: Node) -> Verdict:
    """Only the first result is used.

    Norms and pools give statistics or indices beside it, which few libraries do.
    """
    others = results_used(node) - {0}
    if others:
        return no(Reason.ATTRIBUTE, f"result {min(others)} is used, and only the first can be given")
    return YES


def one_index(node: Node) -> Verdict:
    """One tensor of integer indices."""
    indices = [i for i in arguments(node)["indices"] if i is not None]
    if len(indices) == 1 and not any(t.dtype.itemsize == 1 for t in tensors(indices[0])):
        return YES
    return no(Reason.ATTRIBUTE, "only one tensor of integer indices is taken")


def of_dtypes(node: Node, allowed: Set[torch.dtype], taker: str) -> Verdict:
    """Whether all tensors that a node reads, and makes for others, have these dtypes; `taker` is for messages."""
    for other in (node, *node.all_input_nodes):
        for given in _used(other):
            if given.dtype not in allowed:
                name = str(given.dtype).removeprefix("torch.")
                return no(Reason.DTYPE, f"{other.name} is {name}, which {taker} does not take here")
    return YES


def _used(node: Node) -> Iterator[torch.Tensor]:
    """The tensors of a node that anything uses: of several results often only the first."""
    given, picked = tensors(node), results_used(node)
    return (t for i, t in enumerate(given) if len(given) == 1 or i in picked)


class TableBackend(Backend):
    """A backend whose support checks and lowerings are rows of `table`."""

    table: ClassVar[LoweringTable[Any]]

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """What the check of the operator's row says in its docstring."""
        row = cls.table.get(op)
        return None if row is None else conditions(row.check)

    @property
    def preserve_ops(self) -> Set[str]:
        return frozenset(row.op for row in self.table if row.keep)

    def check(self, node: Node) -> Verdict:
        row = self.table.get(op_name(node))
        if row is None:
            return no(Reason.OPERATOR, f"{self.name} has no lowering of {op_name(node)}")
        return row.check(node)
