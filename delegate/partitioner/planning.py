"""From an EdgeProgram to a Plan: collect the verdicts under the rules, assign, form the partitions."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch.fx import Node

from delegate.edge.node import describe, is_compute, is_empty, op_name, tensors
from delegate.edge.program import EdgeProgram
from delegate.errors import DelegateError, PartitionError
from delegate.partitioner.assign import Stretch, Verdicts, assign
from delegate.partitioner.collector import paused_collector
from delegate.partitioner.numbers import is_size_arithmetic, unknown_number
from delegate.partitioner.partitioner import Check, Partitioner
from delegate.partitioner.plan import NodePlan, Partition, Plan, Unit
from delegate.partitioner.rules import PartitionRules, RuleBook, RulePattern
from delegate.partitioner.submodules import subprograms
from delegate.plugins import AUTHOR, PORTABLE, one_line
from delegate.verdict import Reason, Verdict, no

Refusals = Mapping[str, Mapping[Node, str]]  # backend -> node -> the words of the library that turned it down

NAMED = 3  # so many nodes are named in a note that speaks of several


def plan(
    program: EdgeProgram,
    partitioners: Sequence[Partitioner],
    checks: Mapping[str, Check],
    rules: PartitionRules | None = None,
    *,
    refusals: Refusals | None = None,
    taken: Iterable[str] = (),
) -> Plan:
    """Plan one method and the graphs of its control flow.

    Args:
        program: the method, in edge dialect. It is not changed.
        partitioners: in order of preference, one per backend.
        checks: name of a backend -> its support check.
        rules: of the configuration.
        refusals: backend -> nodes that its library turned down after all -> the library's own words.
        taken: names of partitions of other methods, which this plan must not use again.

    Raises:
        PartitionError: the rules do not fit the backends, or a partitioner or a check failed.
    """
    rules = rules or PartitionRules()
    names = [p.backend for p in partitioners]
    for name, count in Counter(names).items():
        if count > 1 or name not in checks:
            what = f"backend {name} is asked for {count} times" if count > 1 else f"backend {name} has no support check"
            raise PartitionError(what, where=program.name, remedy="name every backend once")
    planner = _Planner(partitioners, checks, rules, RuleBook(rules, names), refusals or {}, set(taken))
    with paused_collector():
        made = planner.plan(program)
    return replace(made, notes=(*made.notes, *planner.book.unused()))


@dataclass(slots=True)
class _Planner:
    """What the plans of one method have in common."""

    partitioners: Sequence[Partitioner]
    checks: Mapping[str, Check]
    rules: PartitionRules
    book: RuleBook
    refusals: Refusals
    taken: set[str]
    numbering: Counter[str] = field(default_factory=Counter)

    def plan(self, program: EdgeProgram, *, is_nested: bool = False) -> Plan:
        """The plan of one graph and of those below it."""
        backends = [p.backend for p in self.partitioners]
        inner = [n for n in program.graph.nodes if n.op not in ("placeholder", "output")]
        computing = [n for n in inner if is_compute(n) and not is_size_arithmetic(n)]
        empty = frozenset(filter(is_empty, program.graph.nodes))
        pins = {n: pin for n in computing if (pin := self.book.pin(n)) is not None}
        verdicts: dict[Node, Verdicts] = {n: {} for n in computing}
        for partitioner in self.partitioners:
            self._collect(partitioner, program, pins, verdicts, empty)
        pinned = frozenset(n for n, pin in pins.items() if pin.place != PORTABLE)
        notes = _broken_pins(pins, verdicts)
        stretches = assign(inner, verdicts, backends, self.rules.min_partition_size, pinned)
        order = tuple(self._units(stretches))
        partitions = tuple(u for u in order if isinstance(u, Partition))
        home = {n: p for p in partitions for n in p.nodes}
        nodes = tuple(_node_plan(n, verdicts[n], home.get(n)) for n in computing)
        nested = {name: self.plan(sub, is_nested=True) for name, sub in subprograms(program).items()}
        return Plan(program, tuple(backends), nodes, partitions, order, tuple(notes), nested, is_nested)

    def _collect(
        self,
        partitioner: Partitioner,
        program: EdgeProgram,
        pins: Mapping[Node, RulePattern],
        verdicts: Mapping[Node, Verdicts],
        empty: frozenset[Node],
    ) -> None:
        """Add one backend's verdicts."""
        name = partitioner.backend
        check = _GuardedCheck(name, self.checks[name], self.book, pins, self.refusals.get(name, {}), empty)
        answers = partitioner.partition(program, check)
        missing = no(Reason.EXCLUDED, f"{type(partitioner).__name__} gave no verdict on it")
        for node, by_backend in verdicts.items():
            answer = answers.get(node, missing)
            if not isinstance(answer, Verdict):
                what = f"{type(partitioner).__name__} answered {answer!r}"
                raise PartitionError(what, where=describe(node), remedy="answer with a delegate.verdict.Verdict")
            own = check(node) if answer else None
            by_backend[name] = answer if own is None or own else own

    def _units(self, stretches: Iterable[Stretch]) -> Iterator[Unit]:
        """The order of the plan: nodes of the host, and partitions with their names."""
        for stretch in stretches:
            if stretch.backend is None:
                yield from stretch.nodes
            else:
                yield Partition(self._name(stretch.backend), stretch.backend, stretch.nodes)

    def _name(self, backend: str) -> str:
        while (name := f"{backend}_{self.numbering[backend]}") in self.taken:
            self.numbering[backend] += 1
        self.numbering[backend] += 1
        return name


class _GuardedCheck:
    """A backend's support check behind the rules; asks the backend once per node.

    Raises:
        PartitionError: the backend's check failed.
    """

    def __init__(
        self,
        backend: str,
        check: Check,
        book: RuleBook,
        pins: Mapping[Node, RulePattern],
        refusals: Mapping[Node, str],
        empty: frozenset[Node],
    ) -> None:
        self._backend, self._check, self._book, self._pins, self._refusals = backend, check, book, pins, refusals
        self._empty = empty
        self._known: dict[Node, Verdict] = {}

    def __call__(self, node: Node) -> Verdict:
        verdict = self._known.get(node)
        if verdict is None:
            verdict = self._forbidden(node)  # not "or": a refusal is false
            if verdict is None:
                verdict = self._ask(node)
            self._known[node] = verdict
        return verdict

    def _forbidden(self, node: Node) -> Verdict | None:
        pin = self._pins.get(node)
        if pin is not None and pin.place != self._backend:
            return Verdict(Reason.PINNED, f"by {pin}")
        excluded = self._book.excluded(op_name(node), self._backend)
        if excluded is not None:
            return excluded
        if node in self._refusals:
            return no(Reason.REFUSED, self._refusals[node])
        if self._empty and not self._empty.isdisjoint((node, *node.all_input_nodes)):
            return no(Reason.OPERATOR, "it works on a tensor without elements, which vendor libraries do not expect")
        return _not_for_delegates(node)

    def _ask(self, node: Node) -> Verdict:
        try:
            verdict = self._check(node)
        except DelegateError:
            raise
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            what = f"the support check of backend {self._backend} failed with {one_line(error)}"
            raise PartitionError(what, where=describe(node), remedy=AUTHOR) from error
        if not isinstance(verdict, Verdict):
            what = f"the support check of backend {self._backend} answered {reprlib.repr(verdict)}"
            remedy = f"it should answer with a delegate.verdict.Verdict: {AUTHOR}"
            raise PartitionError(what, where=describe(node), remedy=remedy)
        return verdict


def _not_for_delegates(node: Node) -> Verdict | None:
    """Why no backend whatever can run a node, if so."""
    sources = node.all_input_nodes
    if any(source.op == "get_attr" for source in sources):
        return no(Reason.OPERATOR, "control flow is run by the runtime, which may delegate the graphs inside it")
    if not tensors(node):
        return no(Reason.OPERATOR, "it gives no tensor")
    number = unknown_number(node)
    if number is not None:
        what = f"its argument {number.name} is a number that the shapes of its tensors do not tell"
        return no(Reason.DYNAMIC_SHAPE, what, "make that size static")
    return None


def _broken_pins(pins: Mapping[Node, RulePattern], verdicts: Mapping[Node, Verdicts]) -> list[str]:
    """A note for every pin whose backend cannot run all its nodes."""
    nodes_of: dict[RulePattern, list[Node]] = {}
    for node, pin in pins.items():
        nodes_of.setdefault(pin, []).append(node)
    notes = []
    for pin, nodes in nodes_of.items():
        broken = [n for n in nodes if pin.place != PORTABLE and not verdicts[n][pin.place]]
        if broken:
            named = "; ".join(f"{n.name} ({verdicts[n][pin.place]})" for n in broken[:NAMED])
            rest = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
            notes.append(
                f"{pin}: {len(broken)} of {len(nodes)} nodes cannot run there and stay portable: {named}{rest}"
            )
    return notes


def _node_plan(node: Node, verdicts: Verdicts, partition: Partition | None) -> NodePlan:
    if partition is None:
        return NodePlan(node, op_name(node), verdicts, None, None)
    return NodePlan(node, op_name(node), verdicts, partition.backend, partition.name)
