"""Support checks of one backend for the planner, after the rules of the configuration."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import Node

from delegate.backend.aot import Claim
from delegate.backend.decomposition import is_compound
from delegate.backend.selected import SelectedBackend
from delegate.costs.quantities import is_layout, traffic
from delegate.edge.decompose import trace_key
from delegate.edge.node import (
    is_compute,
    is_constant,
    is_empty,
    is_number,
    is_size_arithmetic,
    nbytes,
    op_name,
    tensors,
    unknown_number,
)
from delegate.edge.program import EdgeProgram
from delegate.errors import LoweringError
from delegate.partitioner.rules import RuleBook, RulePattern
from delegate.verdict import YES, Reason, Verdict, no

Check = Callable[[Node], Verdict]


# A decomposition that moves this many times the bytes of the operator is slower than the operator's kernel. Bicubic
# resizing in 16 gathers took 5 times the kernel's time on XNNPACK, at 40 times the bytes.
MOST_TRAFFIC = 24
# They decompose into thousands of nodes, some for each step of a sequence. If a kernel runs them, no backend is queried
# about the decomposition.
LOOPS = frozenset(f"aten.{op}.{form}" for op in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data"))

# Operators that return their first argument with another content in a part of it; each has a kernel that runs in place.
PARTIAL_WRITES = frozenset(
    f"aten.{name}"
    for name in (
        "index_put.default", "_unsafe_index_put.default", "index_copy.default", "index_add.default",
        "index_fill.int_Scalar", "index_fill.int_Tensor", "scatter.src", "scatter.value", "scatter_add.default",
        "slice_scatter.default", "select_scatter.default", "diagonal_scatter.default", "as_strided_scatter.default",
    )
)  # fmt: skip
LARGE = 1 << 18  # bytes: two copies of a smaller state take less time than another partition


@dataclass(slots=True)
class SupportQuery:
    """The verdicts of one backend on the nodes of one graph, each computed once.

    Args:
        backend: the backend.
        book: the rules.
        pins: What the rules pin among the nodes of this graph.
        refusals: nodes that the library rejected after the support check -> the reason.
        barred: nodes of this graph that no backend may run.
        has_kernel: returns if a kernel runs a node without decomposition.
    """

    backend: SelectedBackend
    book: RuleBook
    pins: Mapping[Node, RulePattern]
    refusals: Mapping[Node, Verdict]
    barred: Mapping[Node, Verdict]
    has_kernel: Callable[[Node], bool]
    _may_forbid: bool = field(init=False)
    _known: dict[Node, Verdict] = field(default_factory=dict)
    _decompositions: dict[Any, Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._may_forbid = bool(self.pins or self.refusals or self.book.restricts)

    def check(self, node: Node) -> Verdict:
        """Return the verdict on one node, preserved or decomposed as the backend requires.

        Raises:
            PartitionError: the backend's check failed.
        """
        verdict = self._known.get(node)
        if verdict is None:
            verdict = self._forbidden(node) if self._may_forbid else self.barred.get(node)
            if verdict is None:  # not "or": a refusal is false
                verdict = self.backend.check(node) if self.backend.policy.preserves(node) else no(Reason.OPERATOR)
                if verdict.reason is not None and is_compound(node):
                    verdict = self._check_decomposition(node, verdict)
            self._known[node] = verdict
        return verdict

    def claims(self, nodes: Iterable[Node]) -> tuple[list[Claim], dict[Node, Verdict]]:
        """Return the accepted pattern matches, the first around each node, and verdicts on nodes of refused matches.

        Raises:
            PartitionError: the backend's claims failed.
        """
        accepted: list[Claim] = []
        refused: dict[Node, Verdict] = {}
        if not self.backend.has_claims:
            return accepted, refused
        for node in nodes:
            for claim in self.backend.claims(node):
                verdict = claim.verdict and self._all_allowed(claim)
                if verdict:
                    accepted.append(claim)
                    break
                named = replace(verdict, message=f"as part of {claim.name!r}: {verdict.message}")
                for part in claim.nodes:
                    refused.setdefault(part, named)
        return accepted, refused

    def _all_allowed(self, claim: Claim) -> Verdict:
        refused = (v for n in claim.nodes if is_compute(n) and (v := self._forbidden(n)) is not None)
        return next(refused, YES)

    def _forbidden(self, node: Node) -> Verdict | None:
        pin = self.pins.get(node)
        if pin is not None and pin.place != self.backend.name:
            return Verdict(Reason.PINNED, f"by {pin}")
        if node in self.refusals:
            return self.refusals[node]
        excluded = self.book.excluded(op_name(node), self.backend.name)
        return self.barred.get(node) if excluded is None else excluded

    def _check_decomposition(self, node: Node, own: Verdict) -> Verdict:
        """Return the verdict on a compound node by its decomposition, after the refusal of the node itself."""
        if op_name(node) in LOOPS and self.has_kernel(node):
            return own if own.message else no(Reason.OPERATOR, "a loop over steps, which one kernel runs as a whole")
        verdict = self._query_once(node)
        if verdict or not own.message:
            return verdict
        return replace(own, message=f"{own.message}; and {verdict.message}" if verdict.message else own.message)

    def _query_once(self, node: Node) -> Verdict:
        """Return the result of `_query_decomposed`, which is the same for nodes of equal layers."""
        key = trace_key(node)
        if key is None:
            return self._query_decomposed(node)
        results = tuple(user.args[1] for user in node.users if user.target is operator.getitem)
        key = key, tuple(map(is_constant, node.all_input_nodes)), results
        if key not in self._decompositions:
            self._decompositions[key] = self._query_decomposed(node)
        return self._decompositions[key]

    def _query_decomposed(self, node: Node) -> Verdict:
        """Return the verdict on the decomposition of a compound node."""
        try:
            parts = self.backend.policy.parts(node)
        except LoweringError as error:
            return no(Reason.OPERATOR, error.what)
        if not parts:
            return no(Reason.OPERATOR, "its decomposition computes nothing")
        verdicts = [self._query_part(part) for part in parts]
        refused = next(((p, v) for p, v in zip(parts, verdicts, strict=True) if not v), None)
        if refused is None and len({v.tag for v in verdicts}) > 1:
            refused = parts[0], no(Reason.OPERATOR, "the operators of its decomposition cannot share a partition")
        if refused is None:
            slower = self._slower(node, parts)
            supported = replace(verdicts[0], in_parts=True, message="", remedy="")
            return supported if slower is None else slower
        part, why = refused
        message = f"in its decomposition, {op_name(part)}: {why.message or why.reason}"
        return replace(why, message=message)

    def _query_part(self, node: Node) -> Verdict:
        verdict = self.book.excluded(op_name(node), self.backend.name)
        if verdict is None:
            verdict = not_for_delegates([node]).get(node)
        return self.backend.check(node) if verdict is None else verdict

    def _slower(self, node: Node, parts: Iterable[Node]) -> Verdict | None:
        """Return a refusal if a kernel of the operator is faster than its decomposition; else None."""
        if not self.has_kernel(node):
            return None
        factor = sum(traffic(p) for p in parts if not is_layout(p)) / max(traffic(node), 1)
        if factor <= MOST_TRAFFIC:
            return None
        return no(Reason.SLOWER, f"its decomposition moves {factor:.0f} times as many bytes as one kernel")


def not_for_delegates(nodes: Iterable[Node]) -> dict[Node, Verdict]:
    """Return the nodes that no backend can run, with reasons; each source is checked once."""
    sources = {node: node.all_input_nodes for node in nodes}
    around = set(sources).union(*sources.values())
    unusual = {n for n in around if n.op == "get_attr" or is_number(n) or is_empty(n) or not tensors(n)}
    suspects = [n for n, inputs in sources.items() if n in unusual or not unusual.isdisjoint(inputs)]
    return {n: verdict for n in suspects if (verdict := _not_for_delegates(n)) is not None}


def _not_for_delegates(node: Node) -> Verdict | None:
    sources = node.all_input_nodes
    if is_empty(node) or any(map(is_empty, sources)):
        return no(Reason.OPERATOR, "it works on a tensor without elements, which vendor libraries do not expect")
    if any(source.op == "get_attr" for source in sources):
        return no(Reason.OPERATOR, "control flow is run by the runtime, which may delegate the graphs inside it")
    if not tensors(node):
        return no(Reason.OPERATOR, "it returns no tensor")
    number = unknown_number(node)
    if number is not None:
        what = f"its argument {number.name} is a number that does not follow from the shapes of its tensors"
        return no(Reason.DYNAMIC_SHAPE, what, "make that size static")
    return None


def computing(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that need a verdict: those that compute more than sizes."""
    return [n for n in nodes if is_compute(n) and not is_size_arithmetic(n)]


def writes_of_large_states(program: EdgeProgram, has_kernel: Callable[[Node], bool]) -> dict[Node, Verdict]:
    """Return the nodes that write a part of a large state, with the reason why no backend should run them.

    Args:
        program: the graph of one method.
        has_kernel: returns if a kernel runs a node without decomposition.
    """
    if not program.mutated:
        return {}
    placeholders = {name: placeholder for placeholder, name in program.states.items()}
    results: Any = program.graph.output_node().args[0]
    first = len(results) - len(program.mutated) - len(program.written)
    verdicts: dict[Node, Verdict] = {}
    for state, value in zip(program.mutated, results[first:], strict=False):
        writes = list(_writes(value))
        start = writes[-1].args[0] if writes else None
        if isinstance(start, Node) and start.name == placeholders[state] and all(map(has_kernel, writes)):
            what = f"it writes a part of state '{state}': a kernel does this in place, but a backend copies all of it"
            verdicts.update(dict.fromkeys(writes, no(Reason.SLOWER, what)))
    return verdicts


def _writes(value: object) -> Iterator[Node]:
    """Yield the partial writes from a value back to what they all write to."""
    while isinstance(value, Node) and op_name(value) in PARTIAL_WRITES and nbytes(value) >= LARGE:
        yield value
        value = value.args[0]
