"""Planning: collects verdicts on an EdgeProgram under the rules, assigns nodes to backends, and forms partitions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch.fx import Node

from delegate.backend.aot import Claim
from delegate.backend.decomposition import is_compound
from delegate.backend.selected import SelectedBackend
from delegate.costs.estimates import Estimates
from delegate.costs.profile import read_shipped
from delegate.edge.control_flow import subprograms
from delegate.edge.graphs import gc_paused
from delegate.edge.node import describe, op_name
from delegate.edge.program import EdgeProgram
from delegate.errors import PartitionError
from delegate.events import emit, is_heard
from delegate.events.kinds import Planned, SupportChecked
from delegate.partitioner.assign import CostThreshold, Verdicts, assign
from delegate.partitioner.partitioner import CapabilityPartitioner, Partitioner
from delegate.partitioner.plan import NodePlan, Partition, Plan, Unit
from delegate.partitioner.rules import PartitionRules, RuleBook, RulePattern
from delegate.partitioner.saved import AppliedPlan
from delegate.partitioner.search import NOT_CHOSEN, Search, Way, seconds_of, ways
from delegate.partitioner.support_query import SupportQuery, computing, not_for_delegates, writes_of_large_states
from delegate.plugins import INSTANCE, PORTABLE
from delegate.verdict import YES, Reason, Verdict, no

Refusals = Mapping[str, Mapping[Node, Verdict]]  # backend -> node that its library rejected -> the reason
HasKernel = Callable[[Node], bool]

NAMED = 3  # most nodes that a note names


def plan(
    program: EdgeProgram,
    partitioners: Sequence[Partitioner],
    backends: Mapping[str, SelectedBackend],
    rules: PartitionRules | None = None,
    *,
    refusals: Refusals | None = None,
    taken: Iterable[str] = (),
    has_kernel: HasKernel = lambda node: True,
    search: Search | AppliedPlan | None = None,
) -> Plan:
    """Plan one method and the graphs of its control flow.

    Args:
        program: the method, in edge dialect; not changed.
        partitioners: Partitioners in order of preference, one per backend.
        backends: Backend name -> the backend.
        rules: The configuration's rules.
        refusals: backend -> nodes that its library rejected after the support check -> the reason.
        taken: partition names of other methods, which this plan must not use.
        has_kernel: returns if a kernel runs a node without decomposition.
        search: the search for the cheapest plan, or a plan to apply; None: a node's first backend runs it.

    Raises:
        PartitionError: the rules do not fit the backends, or a partitioner or a check failed.
    """
    rules = rules or PartitionRules()
    names = [p.backend for p in partitioners]
    for name, count in Counter(names).items():
        if count > 1 or name not in backends:
            what = f"backend {name} is requested {count} times" if count > 1 else f"backend {name} has no support check"
            raise PartitionError(what, where=program.name, remedy="name every backend once")
    book = RuleBook(rules, names)
    planner = _Planner(partitioners, backends, rules, book, refusals or {}, set(taken), has_kernel, search)
    start = time.perf_counter_ns()
    with gc_paused():
        result = planner.plan(program)
    if is_heard():
        emit(_describe_plan(result, start))
    return replace(result, notes=(*program.notes, *result.notes, *planner.book.unused()))


def _describe_plan(plan: Plan, start: int) -> Planned:
    parts = tuple(plan.walk())
    nodes = Counter(n.backend or PORTABLE for part in parts for n in part.nodes)
    partitions = Counter(p.backend for part in parts for p in part.partitions)
    return Planned(plan.program.name, nodes, partitions, start, time.perf_counter_ns() - start)


@dataclass(slots=True)
class _Planner:
    """The inputs and the state that all plans of one method share."""

    partitioners: Sequence[Partitioner]
    backends: Mapping[str, SelectedBackend]
    rules: PartitionRules
    book: RuleBook
    refusals: Refusals
    taken: set[str]
    has_kernel: HasKernel
    search: Search | AppliedPlan | None
    numbering: Counter[str] = field(default_factory=Counter)

    def plan(self, program: EdgeProgram, *, is_nested: bool = False) -> Plan:
        """Plan one graph and its nested graphs."""
        inner = [n for n in program.graph.nodes if n.op not in ("placeholder", "output")]
        checked = computing(inner)
        pins = {n: pin for n in checked if (pin := self.book.pin(n)) is not None}
        verdicts, claims = self._ask(program, checked, pins)
        units, verdicts, seconds = self._assign(inner, verdicts, claims, pins)
        order = tuple(self._units(units, verdicts))
        partitions = tuple(u for u in order if isinstance(u, Partition))
        partition_of = {n: p for p in partitions for n in p.nodes}
        leftover = (n for n in checked if n not in partition_of and is_compound(n) and not self.has_kernel(n))
        return Plan(
            program,
            tuple(p.backend for p in self.partitioners),
            tuple(_node_plan(n, verdicts[n], partition_of.get(n)) for n in checked),
            partitions,
            order,
            tuple(_broken_pins(pins, verdicts)),
            {name: self.plan(sub, is_nested=True) for name, sub in subprograms(program).items()},
            is_nested,
            tuple(leftover),
            seconds=seconds,
        )

    def _ask(
        self, program: EdgeProgram, checked: Sequence[Node], pins: Mapping[Node, RulePattern]
    ) -> tuple[dict[Node, Verdicts], dict[str, Sequence[Claim]]]:
        """Return the verdicts on nodes, and the accepted pattern matches."""
        verdicts: dict[Node, Verdicts] = {n: {} for n in checked}
        in_place = {n: v for n, v in writes_of_large_states(program, self.has_kernel).items() if n not in pins}
        barred = not_for_delegates(checked) | in_place
        claims: dict[str, Sequence[Claim]] = {}
        for partitioner in self.partitioners:
            start, name = time.perf_counter_ns(), partitioner.backend
            refusals = self.refusals.get(name, {})
            query = SupportQuery(self.backends[name], self.book, pins, refusals, barred, self.has_kernel)
            query.backend.forget(program.graph)
            claims[name] = self._collect(partitioner, query, program, verdicts)
            if query.backend.dropped is not None:  # also in its last checks
                claims[name] = ()
                refusal = no(Reason.REFUSED, query.backend.dropped.what)
                for by_backend in verdicts.values():
                    by_backend[name] = by_backend[name] and refusal
            if is_heard():
                duration = time.perf_counter_ns() - start
                supported = sum(bool(own[name]) for own in verdicts.values())
                emit(SupportChecked(program.name, name, len(verdicts), supported, start, duration))
        if isinstance(self.search, AppliedPlan):
            claims = self.search.apply(program.name, verdicts, claims)
        return verdicts, claims

    def _threshold(self, pins: Mapping[Node, RulePattern]) -> CostThreshold:
        return CostThreshold(
            0 if isinstance(self.search, AppliedPlan) else self.rules.min_partition_size,
            frozenset(n for n, pin in pins.items() if pin.place != PORTABLE),
            self.has_kernel,
            {p.backend: self.backends[p.backend].most_constants for p in self.partitioners},
            self.search.costs if isinstance(self.search, Search) else Estimates(read_shipped()),
            by_costs=isinstance(self.search, Search),
        )

    def _assign(
        self,
        nodes: Sequence[Node],
        verdicts: dict[Node, Verdicts],
        claims: Mapping[str, Sequence[Claim]],
        pins: Mapping[Node, RulePattern],
    ) -> tuple[list[Unit], dict[Node, Verdicts], Mapping[str, float]]:
        """Return the order of the plan, the verdicts with its reasons, and the estimated seconds of each way."""
        names, threshold = [p.backend for p in self.partitioners], self._threshold(pins)
        if not isinstance(self.search, Search):
            return assign(nodes, verdicts, claims, names, threshold), verdicts, {}
        claimed = {name: {n for claim in own for n in claim.nodes} for name, own in claims.items()}
        places: dict[Node, tuple[str, ...]] = {}
        for node, by_backend in verdicts.items():
            able = tuple(name for name in names if by_backend[name] or node in claimed[name])
            is_kernel_able = not able if node in pins else self.has_kernel(node)
            places[node] = (*able, PORTABLE) if is_kernel_able else able
        drafts: dict[str, tuple[list[Unit], dict[Node, Verdicts]]] = {}
        for name, way in ways(nodes, places, names, self.search.costs).items():
            own = _along(way, verdicts)
            kept = {
                backend: [c for c in all_ if all(way.get(n, backend) == backend for n in c.nodes)]
                for backend, all_ in claims.items()
            }
            order = assign(nodes, own, kept, names, threshold)
            used = {unit.backend for unit in order if isinstance(unit, Partition)}
            if name in names and name not in used:  # kernels would be a little cheaper
                own = _along(way, verdicts)
                order = assign(nodes, own, kept, names, replace(threshold, by_costs=False))
            drafts[name] = order, own
        seconds = {name: seconds_of(order, self.search.costs) for name, (order, _) in drafts.items()}
        chosen = self.search.choose(seconds)
        return *drafts[chosen], {chosen: seconds[chosen], **seconds}

    def _collect(
        self, partitioner: Partitioner, query: SupportQuery, program: EdgeProgram, verdicts: Mapping[Node, Verdicts]
    ) -> list[Claim]:
        """Add one backend's verdicts; return its accepted pattern matches."""
        name = partitioner.backend
        claims, refused = query.claims(verdicts)
        if type(partitioner) is CapabilityPartitioner:  # it only repeats the backend's check
            for node, by_backend in verdicts.items():
                by_backend[name] = own = query.check(node)
                if own.reason is Reason.OPERATOR and node in refused:
                    by_backend[name] = refused[node]
            return claims
        claimed = {n for claim in claims for n in claim.nodes}
        answers = partitioner.partition(program, lambda node: YES if node in claimed else query.check(node))
        missing = no(Reason.EXCLUDED, f"{type(partitioner).__name__} returned no verdict on it")
        accepted = set(claimed)
        for node, by_backend in verdicts.items():
            answer = answers.get(node, missing)
            if not isinstance(answer, Verdict):
                what = f"{type(partitioner).__name__} returned {answer!r}"
                raise PartitionError(what, where=describe(node), remedy="return a delegate.verdict.Verdict")
            own = query.check(node) if answer else answer  # for a claimed node, its verdict outside of the pattern
            if own and own.in_parts and not answer.in_parts:
                answer = replace(answer, in_parts=True)
            if not answer:
                accepted.discard(node)
            by_backend[name] = answer if own else refused.get(node, own) if own.reason is Reason.OPERATOR else own
        return [
            tagged
            for claim in claims
            if accepted.issuperset(n for n in claim.nodes if n in verdicts)
            if (tagged := _with_tags(claim, answers)) is not None
        ]

    def _units(self, units: Iterable[Unit], verdicts: Mapping[Node, Verdicts]) -> Iterator[Unit]:
        """Yield the order of the plan: nodes of the host, and partitions with their names."""
        for unit in units:
            if isinstance(unit, Partition):
                claimed = {n for claim in unit.patterns for n in claim.nodes}
                rest = (n for n in unit.nodes if n in verdicts and n not in claimed)
                in_parts = tuple(n for n in rest if verdicts[n][unit.backend].in_parts)
                unit = replace(unit, name=self._name(unit.backend), in_parts=in_parts)  # noqa: PLW2901
            yield unit

    def _name(self, backend: str) -> str:
        stem = backend.replace(INSTANCE, "_")
        while (name := f"{stem}_{self.numbering[backend]}") in self.taken:
            self.numbering[backend] += 1
        self.taken.add(name)
        self.numbering[backend] += 1
        return name


def _along(way: Way, verdicts: Mapping[Node, Verdicts]) -> dict[Node, Verdicts]:
    """Return the verdicts with a refusal for each node on the backends that a way does not run it on."""
    return {
        node: {name: NOT_CHOSEN if v and name != way[node] else v for name, v in own.items()}
        for node, own in verdicts.items()
    }


def _with_tags(claim: Claim, answers: Mapping[Node, Verdict]) -> Claim | None:
    """Return a claim with the partitioner's tag of its nodes; None if their tags differ."""
    tags = {answers[node].tag for node in claim.nodes if node in answers}
    if len(tags) > 1:
        return None
    return replace(claim, verdict=replace(claim.verdict, tag=claim.verdict.tag + "".join(tags)))


def _broken_pins(pins: Mapping[Node, RulePattern], verdicts: Mapping[Node, Verdicts]) -> list[str]:
    """Return a note for every pin whose backend cannot run all its nodes."""
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
