"""From an EdgeProgram to a Plan: collect the verdicts under the rules, assign, form the partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch.fx import Node

from delegate.backends.aot import Claim
from delegate.backends.untouched import Untouched
from delegate.edge.node import describe, op_name
from delegate.edge.program import EdgeProgram
from delegate.errors import PartitionError
from delegate.partitioner.assign import Stretch, Verdicts, Worth, assign
from delegate.partitioner.capability import Capability
from delegate.partitioner.forms import is_compound
from delegate.partitioner.garbage import collection_paused
from delegate.partitioner.offer import Offer, computing, not_for_delegates
from delegate.partitioner.partitioner import CapabilityPartitioner, Partitioner
from delegate.partitioner.plan import NodePlan, Partition, Plan, Unit
from delegate.partitioner.rules import PartitionRules, RuleBook, RulePattern
from delegate.partitioner.submodules import subprograms
from delegate.partitioner.together import Place, grouped
from delegate.plugins import AUTHOR, BLOCK_VARIABLE, INSTANCE, PORTABLE
from delegate.verdict import YES, Reason, Verdict, no

Refusals = Mapping[str, Mapping[Node, Verdict]]  # backend -> node -> why it does not take it after all
HasKernel = Callable[[Node], bool]

NAMED = 3  # so many nodes are named in a note that speaks of several


def plan(
    program: EdgeProgram,
    partitioners: Sequence[Partitioner],
    capabilities: Mapping[str, Capability],
    rules: PartitionRules | None = None,
    *,
    refusals: Refusals | None = None,
    taken: Iterable[str] = (),
    has_kernel: HasKernel = lambda node: True,
) -> Plan:
    """Plan one method and the graphs of its control flow.

    Args:
        program: the method, in edge dialect. It is not changed.
        partitioners: in order of preference, one per backend.
        capabilities: name of a backend -> what it can do.
        rules: of the configuration.
        refusals: backend -> nodes that it does not take after all, for its library turned them down -> why.
        taken: names of partitions of other methods, which this plan must not use again.
        has_kernel: whether a kernel runs a node as it stands.

    Raises:
        PartitionError: the rules do not fit the backends, or a partitioner or a check failed.
    """
    rules = rules or PartitionRules()
    names = [p.backend for p in partitioners]
    for name, count in Counter(names).items():
        if count > 1 or name not in capabilities:
            what = f"backend {name} is asked for {count} times" if count > 1 else f"backend {name} has no support check"
            raise PartitionError(what, where=program.name, remedy="name every backend once")
    book = RuleBook(rules, names)
    planner = _Planner(partitioners, capabilities, rules, book, refusals or {}, set(taken), has_kernel)
    with collection_paused():
        made = planner.plan(program)
    if rules.together:
        made = grouped(made, planner.place)
    return replace(made, notes=(*made.notes, *planner.book.unused(), *_not_together(rules, made)))


@dataclass(slots=True)
class _Planner:
    """What the plans of one method have in common."""

    partitioners: Sequence[Partitioner]
    capabilities: Mapping[str, Capability]
    rules: PartitionRules
    book: RuleBook
    refusals: Refusals
    taken: set[str]
    has_kernel: HasKernel
    numbering: Counter[str] = field(default_factory=Counter)

    def plan(self, program: EdgeProgram, *, is_nested: bool = False) -> Plan:
        """The plan of one graph and of those below it."""
        backends = [p.backend for p in self.partitioners]
        inner = [n for n in program.graph.nodes if n.op not in ("placeholder", "output")]
        asked = computing(inner)
        pins = {n: pin for n in asked if (pin := self.book.pin(n)) is not None}
        verdicts: dict[Node, Verdicts] = {n: {} for n in asked}
        offers = self._offers(asked, pins)
        collected = {
            p.backend: self._unspoilt(p, offer, program, verdicts)
            for p, offer in zip(self.partitioners, offers, strict=True)
        }
        claims = self._by_branch(verdicts, collected)
        apart = self._to_take_apart(asked, verdicts, offers, claims)
        for node in apart:
            verdicts[node] = {
                name: v and no(Reason.OPERATOR, "it is taken apart") for name, v in verdicts[node].items()
            }
        pinned = frozenset(n for n, pin in pins.items() if pin.place != PORTABLE)
        most = {name: self.capabilities[name].most_constants for name in backends}
        worth = Worth(self.rules.min_partition_size, pinned, self.has_kernel, most)
        stretches = assign(inner, verdicts, claims, backends, worth)
        notes = _broken_pins(pins, verdicts)
        order = tuple(self._units(stretches, verdicts))
        partitions = tuple(u for u in order if isinstance(u, Partition))
        home = {n: p for p in partitions for n in p.nodes}
        nodes = tuple(_node_plan(n, verdicts[n], home.get(n)) for n in asked)
        nested = {name: self.plan(sub, is_nested=True) for name, sub in subprograms(program).items()}
        apart = list(dict.fromkeys((*apart, *(n for n in asked if n not in home and self._is_left_over(n)))))
        return Plan(program, tuple(backends), nodes, partitions, order, tuple(notes), nested, is_nested, tuple(apart))

    def _offers(self, nodes: Sequence[Node], pins: Mapping[Node, RulePattern]) -> list[Offer]:
        barred = not_for_delegates(nodes)
        return [
            Offer(name, self.capabilities[name], self.book, pins, self.refusals.get(name, {}), barred, self.has_kernel)
            for name in (p.backend for p in self.partitioners)
        ]

    def _unspoilt(
        self, partitioner: Partitioner, offer: Offer, program: EdgeProgram, verdicts: Mapping[Node, Verdicts]
    ) -> list[Claim]:
        """What `_collect` gives, of a graph that nobody changed meanwhile."""
        given = Untouched(program.graph)
        claims = self._collect(partitioner, offer, program, verdicts)
        if change := given.change():
            what = f"backend {partitioner.backend}, asked what it supports, {change}"
            remedy = f"{AUTHOR}; {BLOCK_VARIABLE}={partitioner.backend} keeps it out"
            raise PartitionError(what, where=program.name, remedy=remedy)
        return claims

    def _collect(
        self, partitioner: Partitioner, offer: Offer, program: EdgeProgram, verdicts: Mapping[Node, Verdicts]
    ) -> list[Claim]:
        """Add one backend's verdicts; gives the patterns that it takes."""
        name = partitioner.backend
        claims, almost = offer.claims(verdicts)
        if type(partitioner) is CapabilityPartitioner:  # which only repeats what the backend says
            for node, by_backend in verdicts.items():
                by_backend[name] = own = offer.check(node)
                if own.reason is Reason.OPERATOR and node in almost:
                    by_backend[name] = almost[node]
            return claims
        claimed = {n for claim in claims for n in claim.nodes}
        answers = partitioner.partition(program, lambda node: YES if node in claimed else offer.check(node))
        missing = no(Reason.EXCLUDED, f"{type(partitioner).__name__} gave no verdict on it")
        kept = set(claimed)
        for node, by_backend in verdicts.items():
            answer = answers.get(node, missing)
            if not isinstance(answer, Verdict):
                what = f"{type(partitioner).__name__} answered {answer!r}"
                raise PartitionError(what, where=describe(node), remedy="answer with a delegate.verdict.Verdict")
            own = offer.check(node) if answer else answer  # of one that is claimed, what is said of it alone
            if own and own.in_parts and not answer.in_parts:
                answer = replace(answer, in_parts=True)
            if not answer:
                kept.discard(node)
            by_backend[name] = answer if own else almost.get(node, own) if own.reason is Reason.OPERATOR else own
        return [
            tagged
            for claim in claims
            if kept.issuperset(n for n in claim.nodes if n in verdicts)
            if (tagged := _with_tags(claim, answers)) is not None
        ]

    def place(self, plan: Plan, partition: Partition) -> Place | None:
        """The group and branch of `together` that a partition is in."""
        return next((at for node in partition.nodes if (at := self.book.branch(node)) is not None), None)

    def _by_branch(
        self, verdicts: Mapping[Node, Verdicts], claims: Mapping[str, Sequence[Claim]]
    ) -> Mapping[str, Sequence[Claim]]:
        """Keep nodes of branches that are to run at the same time from sharing a partition with any others."""
        if not self.rules.together:
            return claims
        for node, by_backend in verdicts.items():
            if (branch := self.book.branch(node)) is not None:
                by_backend.update({name: _tagged(v, branch) for name, v in by_backend.items() if v})
        found: dict[str, list[Claim]] = {name: [] for name in claims}
        for name, own in claims.items():
            for claim in own:
                branches = {self.book.branch(n) for n in claim.nodes if n in verdicts}
                branch = branches.pop() if len(branches) == 1 else None
                if branch is not None:
                    found[name].append(replace(claim, verdict=_tagged(claim.verdict, branch)))
                elif not branches:
                    found[name].append(claim)
        return found

    def _to_take_apart(
        self,
        nodes: Iterable[Node],
        verdicts: Mapping[Node, Verdicts],
        offers: Sequence[Offer],
        claims: Mapping[str, Sequence[Claim]],
    ) -> list[Node]:
        """Compound nodes without a kernel of which a backend wants some parts before any takes the whole.

        It would get them if it were asked alone, since no kernel runs the whole; so it gets them here.
        """
        if not any(offer.partly for offer in offers):
            return []
        claimed = {name: {n for claim in own for n in claim.nodes} for name, own in claims.items()}
        found = []
        for node in nodes:
            for offer in offers:
                if verdicts[node][offer.backend] or node in claimed[offer.backend]:
                    break
                if node in offer.partly and not self.has_kernel(node):
                    found.append(node)
                    break
        return found

    def _is_left_over(self, node: Node) -> bool:
        return is_compound(node) and not self.has_kernel(node)

    def _units(self, stretches: Iterable[Stretch], verdicts: Mapping[Node, Verdicts]) -> Iterator[Unit]:
        """The order of the plan: nodes of the host, and partitions with their names."""
        for stretch in stretches:
            backend = stretch.backend
            if backend is None:
                yield from stretch.nodes
                continue
            claimed = {n for claim in stretch.patterns for n in claim.nodes}
            rest = (n for n in stretch.nodes if n in verdicts and n not in claimed)
            in_parts = tuple(n for n in rest if verdicts[n][backend].in_parts)
            yield Partition(self._name(backend), backend, stretch.nodes, in_parts, stretch.patterns)

    def _name(self, backend: str) -> str:
        stem = backend.replace(INSTANCE, "_")
        while (name := f"{stem}_{self.numbering[backend]}") in self.taken:
            self.numbering[backend] += 1
        self.taken.add(name)
        self.numbering[backend] += 1
        return name


def _not_together(rules: PartitionRules, made: Plan) -> list[str]:
    """A note where groups of `together` have come to nothing."""
    missing = len(rules.together) - sum(len(part.together) for part in made.walk())
    what = "fewer than two of its patterns have partitions in this method"
    return [f"together: {missing} of {len(rules.together)} groups run nothing at the same time: {what}"] * (missing > 0)


def _tagged(verdict: Verdict, branch: tuple[int, int]) -> Verdict:
    return replace(verdict, tag=f"{verdict.tag} {branch[0]}.{branch[1]}")


def _with_tags(claim: Claim, answers: Mapping[Node, Verdict]) -> Claim | None:
    """A claim with the tag that a partitioner gave to its nodes; None where it has them apart."""
    tags = {answers[node].tag for node in claim.nodes if node in answers}
    if len(tags) > 1:
        return None
    return replace(claim, verdict=replace(claim.verdict, tag=claim.verdict.tag + "".join(tags)))


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
