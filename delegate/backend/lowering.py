"""The table of a backend: one row per operator, or per pattern of several, holds its support check and its lowering."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch.fx import Node

from delegate.backend.aot import Backend, Claim
from delegate.edge.build import leaves
from delegate.edge.node import SYMBOLIC, arguments, op_name, overload, results_used, tensors
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import OpOverload, schema_of
from delegate.verdict import YES, Reason, Verdict, no

How = TypeVar("How")
Check = Callable[[Node], Verdict]
Match = Callable[[Node], Sequence[Node] | Verdict | None]

_SMALLEST = 2.0**-126  # the smallest normal number of float32


@dataclass(frozen=True, slots=True)
class Lowering(Generic[How]):
    """A row of the table: one operator.

    Args:
        op: e.g. "aten.linear.default".
        check: the support check; it must reject every node that `lower` cannot lower.
        lower: the backend's lowering, most often a function of its builder and the node.
        keep: true for an operator that is not core ATen and is preserved for this row.
        dtypes: the dtypes that the tensors of the node may have; None if `check` decides.
    """

    op: str
    check: Check
    lower: How
    keep: bool = False
    dtypes: frozenset[torch.dtype] | None = None


@dataclass(frozen=True, slots=True)
class Pattern(Generic[How]):
    """A row of the table: several nodes that are lowered as one.

    Args:
        name: a name for reports, by which the backend also finds the row, e.g. "linear, relu".
        around: the operators around which the pattern may match.
        match: returns the nodes of the pattern around a node; a refusal if they almost match; else None.
        lower: the lowering of all its nodes, as in `Lowering`.
    """

    name: str
    around: tuple[str, ...]
    match: Match
    lower: How


class LoweringTable(Generic[How]):
    """The rows of a backend, each operator and each name of a pattern at most once."""

    def __init__(self, rows: Iterable[Lowering[How]] = ()) -> None:
        self._rows: dict[str, Lowering[How]] = {}
        self._patterns: dict[str, Pattern[How]] = {}
        self._around: dict[str, list[Pattern[How]]] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Lowering[How]) -> None:
        """Add a row; raises ValueError if the operator has one."""
        if row.op in self._rows:
            raise ValueError(f"two lowerings of {row.op}")
        self._rows[row.op] = row

    def add_pattern(self, pattern: Pattern[How]) -> None:
        """Add a pattern with a lower priority than earlier ones; raises ValueError if one of them has its name."""
        if pattern.name in self._patterns:
            raise ValueError(f"two patterns {pattern.name!r}")
        self._patterns[pattern.name] = pattern
        for op in pattern.around:
            self._around.setdefault(op, []).append(pattern)

    def lowers(
        self, *ops: str, check: Check, keep: bool = False, dtypes: frozenset[torch.dtype] | None = None
    ) -> Callable[[How], How]:
        """Return a decorator of a function that lowers these operators. It takes the arguments of `Lowering`."""

        def register(function: How) -> How:
            for op in ops:
                self.add(Lowering(op, check, function, keep, dtypes))
            return function

        return register

    def lowers_pattern(self, name: str, *around: str, match: Match) -> Callable[[How], How]:
        """Return a decorator of a function that lowers the nodes that `match` returns around these operators."""

        def register(function: How) -> How:
            self.add_pattern(Pattern(name, around, match, function))
            return function

        return register

    def get(self, op: str) -> Lowering[How] | None:
        """Return the row of an operator; None if there is none."""
        return self._rows.get(op)

    def pattern(self, name: str) -> Pattern[How]:
        """Return the pattern with a name; raises KeyError."""
        return self._patterns[name]

    def check(self, node: Node, taker: str) -> Verdict | None:
        """Return the verdict of the row for a node's operator; None without a row. `taker` is for messages."""
        row = self._rows.get(op_name(node))
        if row is None:
            return None
        dtypes = YES if row.dtypes is None else of_dtypes(node, row.dtypes, taker)
        return dtypes and known_numbers(node) and row.check(node)

    def claims(self, node: Node) -> list[Claim]:
        """Return the patterns that match around a node, and refusals of those that almost match."""
        found = ((p.name, p.match(node)) for p in self._around.get(op_name(node), ()))
        return [
            Claim(name, (node,), match) if isinstance(match, Verdict) else _claim(name, node, tuple(match))
            for name, match in found
            if match is not None
        ]

    def conditions(self, op: str) -> tuple[str, ...] | None:
        """Return the dtypes and the other conditions of an operator; None if it has no row."""
        row = self._rows.get(op)
        if row is None:
            return None
        dtypes = () if row.dtypes is None else (f"All tensors are of {dtype_names(row.dtypes)}.",)
        return (*dtypes, *conditions(row.check))

    @property
    def preserve_ops(self) -> frozenset[str]:
        """Return the compound operators that rows preserve."""
        return frozenset(row.op for row in self if row.keep)

    def __getitem__(self, op: str) -> Lowering[How]:
        return self._rows[op]

    def __iter__(self) -> Iterator[Lowering[How]]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)


def _claim(name: str, node: Node, nodes: tuple[Node, ...]) -> Claim:
    """Return a match of nodes around one; it is a refusal if a number of these nodes is not known."""
    refused = next((verdict for n in nodes if not (verdict := known_numbers(n))), None)
    return Claim(name, nodes) if refused is None else Claim(name, (node,), refused)


def dtype_names(dtypes: Iterable[torch.dtype]) -> str:
    """Return the names of dtypes as text, e.g. "float16, float32"."""
    return ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))


def conditions(check: Check) -> tuple[str, ...]:
    """Return the conditions of a check for people: the first paragraph of its docstring, one condition a line."""
    first, _, _ = inspect.cleandoc(check.__doc__ or "").partition("\n\n")
    return tuple(first.splitlines())


def every(*checks: Check) -> Check:
    """Return a check that accepts a node if all of these do, and else returns the first refusal."""

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


def no_nan(node: Node) -> Verdict:
    """No number among the arguments is NaN."""
    for name, value in arguments(node).items():
        if isinstance(value, float) and math.isnan(value):
            return no(Reason.ATTRIBUTE, f"{name} is NaN, which comparisons lose")
    return YES


def normal_numbers(node: Node) -> Verdict:
    """No number among the arguments is subnormal in float32."""
    for value in (*node.args, *node.kwargs.values()):
        if type(value) is float and 0 < abs(value) < _SMALLEST:
            return no(Reason.INACCURATE, f"{value} is subnormal in float32, and is treated as 0")
    return YES


def with_dimensions(node: Node) -> Verdict:
    """The tensor has dimensions: torch takes dimension 0 of one that has none."""
    if tensors(node.all_input_nodes[0])[0].dim():
        return YES
    return no(Reason.RANK, f"{node.all_input_nodes[0].name} has no dimensions")


def of_matrices(node: Node) -> Verdict:
    """Both factors have two dimensions at least."""
    for factor in node.all_input_nodes:
        if (rank := tensors(factor)[0].dim()) < 2:
            return no(Reason.RANK, f"{factor.name} has {rank} dimensions, but a matrix has two")
    return YES


def first_result_only(node: Node) -> Verdict:
    """Only the first result is used.

    Norms and pools give statistics or indices beside it, which few libraries do.
    """
    others = results_used(node) - {0}
    if others:
        return no(Reason.ATTRIBUTE, f"result {min(others)} is used, but only the first can be returned")
    return YES


def one_index(node: Node) -> Verdict:
    """One tensor of integer indices."""
    indices = [i for i in arguments(node)["indices"] if i is not None]
    if len(indices) == 1 and not any(t.dtype.itemsize == 1 for t in tensors(indices[0])):
        return YES
    return no(Reason.ATTRIBUTE, "only one tensor of integer indices is supported")


def of_dtypes(node: Node, allowed: Set[torch.dtype], taker: str) -> Verdict:
    """Return a refusal unless all tensors that a node reads or returns have these dtypes; `taker` is for messages."""
    for other in (node, *node.all_input_nodes):
        for given in _used_tensors(other):
            if given.dtype not in allowed:
                name = str(given.dtype).removeprefix("torch.")
                return no(Reason.DTYPE, f"{other.name} is {name}, which {taker} does not support here")
    return YES


def _used_tensors(node: Node) -> Iterator[torch.Tensor]:
    """Return the tensors of a node that have users; of several results, these are often only the first."""
    given, picked = tensors(node), results_used(node)
    return (t for i, t in enumerate(given) if len(given) == 1 or i in picked)


def known_numbers(node: Node) -> Verdict:
    """Numbers that are not sizes are known before the program runs."""
    target = overload(node)
    given = map(_value, leaves([*node.args, *node.kwargs.values()]))
    if target is None or not any(isinstance(value, SYMBOLIC) for value in given):
        return YES
    sizes = _sizes(target)
    for name, argument in arguments(node).items():
        for value in map(_value, leaves(argument)):
            if isinstance(value, SYMBOLIC) and not (name in sizes and isinstance(value, torch.SymInt)):
                return no(Reason.DYNAMIC_SHAPE, f"{name} is a number that is computed from the inputs' sizes")
    return YES


@cache
def _sizes(target: OpOverload[..., Any]) -> Set[str]:
    """Return the arguments that are sizes by the operator's schema, since other integers accept no symbolic number."""
    return frozenset(a.name for a in schema_of(target).arguments if "int" in str(a.real_type))


def _value(argument: Any) -> Any:
    """Return the value of a node, and other arguments unchanged: regions hold symbolic numbers themselves."""
    return argument.meta.get(META_VALUE) if isinstance(argument, Node) else argument


class TableBackend(Backend):
    """A backend whose support checks and lowerings are rows of `table`."""

    check_uses_library: ClassVar[bool] = False  # rows are Python
    table: LoweringTable[Any]  # of the class, or of one object where its options decide
    library: str = ""  # what takes or refuses a tensor's dtype, for messages; empty for the backend's name

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """Return the dtypes of the operator's row, and the conditions of its check."""
        return cls.table.conditions(op)

    @property
    def preserve_ops(self) -> Set[str]:
        return self.table.preserve_ops

    def check(self, node: Node) -> Verdict:
        verdict = self.table.check(node, self.library or self.name)
        return self.no_row(op_name(node)) if verdict is None else verdict

    def claims(self, node: Node) -> Sequence[Claim]:
        return self.table.claims(node)

    def no_row(self, op: str) -> Verdict:
        """Return the refusal of an operator that the table lacks."""
        return no(Reason.OPERATOR, f"{self.name} has no lowering of {op}")
