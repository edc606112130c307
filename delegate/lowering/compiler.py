"""The compiler: methods on their way to a compiled program, planned again where a library refuses."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.verification import Moved
from delegate.backends.aot import PreprocessResult, Region, RegionRefused
from delegate.edge.control_flow import CONTROL_FLOW
from delegate.edge.export import to_edge
from delegate.edge.identity import identify
from delegate.edge.passes.pipeline import optimize
from delegate.edge.program import EdgeProgram
from delegate.emit.emitting import emit
from delegate.emit.runnable import has_kernel
from delegate.errors import PartitionError
from delegate.partitioner.candidates import Artifacts, Candidate, candidates, refused_parts
from delegate.partitioner.cut import LoweredDelegate, LoweredProgram, lower
from delegate.partitioner.forms import Forms
from delegate.partitioner.kept import KeptArtifacts
from delegate.partitioner.partitioner import Partitioner
from delegate.partitioner.plan import Plan
from delegate.partitioner.planning import plan as plan_graph
from delegate.partitioner.reporting import make_report
from delegate.partitioner.saved import SavedPlan
from delegate.program.model import DelegateSpec, Program
from delegate.report import Report
from delegate.runtime.kernels import Kernels
from delegate.selection import Selection
from delegate.verdict import Reason, Verdict, no

# Writes of a part that torch would decompose into work on the whole tensor; the kernels of these write the part alone.
_WRITES = frozenset({"aten.select_scatter.default"})
_PATIENCE = 20  # rounds of planning again without what a library refused, before its partitions are given up whole


@dataclass
class _Method:
    """A method on its way.

    Args:
        edge: its program, where operators are whole that anybody wants so.
        refusals: backend -> nodes that it does not take after all -> why.
        plan: where its nodes run.
        origins: name of a partition -> name of a node of its region -> the node of the plan that it comes of.
        candidates: of the plans so far, over the graph as it is now.
        lowered: with its partitions cut out; None where that is to be done, again.
    """

    edge: EdgeProgram
    refusals: dict[str, dict[Node, Verdict]] = field(default_factory=dict)
    plan: Plan | None = None
    origins: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)
    candidates: dict[Hashable, Candidate] = field(default_factory=dict)
    lowered: LoweredProgram | None = None

    def refuse(self, backend: str, verdicts: Mapping[Node, Verdict]) -> None:
        """Have it planned again without these nodes on a backend."""
        self.refusals.setdefault(backend, {}).update(verdicts)
        self.lowered = None


@dataclass
class Compiler:
    """Lowers the methods of one program; partition names are unique among them.

    A method goes from its edge program to a plan, from that to candidates, from these to artifacts; then the partitions
    are cut out.
    """

    selection: Selection
    kernels: Kernels
    saved: SavedPlan | None = None
    kept: KeptArtifacts | None = None
    methods: dict[str, _Method] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    artifacts: Artifacts = field(init=False)
    partitioners: Sequence[Partitioner] = field(init=False)
    beside: SavedPlan | None = field(init=False)  # that says what runs at the same time

    def __post_init__(self) -> None:
        given = self.selection.partitioners
        self.beside = self.saved
        self.partitioners = given if self.saved is None else self.saved.partitioners(given)
        backends = self.selection.backends.items()
        compilers = {name: backend.preprocess for name, backend in backends}
        self.artifacts = Artifacts(compilers, self.kept, {name: backend.check_artifact for name, backend in backends})

    @property
    def preserve_ops(self) -> frozenset[str]:
        """The compound operators that a backend, or a kernel, wants whole. Each is asked in the form that suits it.

        A saved plan says which were when it was made: its nodes are those.
        """
        if self.saved is not None and self.saved.whole is not None:
            return frozenset((*self.saved.whole, *_WRITES))
        wanted = (op for c in self.selection.capabilities.values() for op in c.preserve_ops)
        return frozenset((*wanted, *self.kernels.torch_free.whole_ops, *_WRITES))

    @property
    def plans(self) -> list[Plan]:
        """The plan of every method that has one."""
        return [m.plan for m in self.methods.values() if m.plan is not None]

    def take(self, exported: Mapping[str, ExportedProgram]) -> None:
        """Begin with these methods: bring them to edge dialect."""
        self.selection.warm_up(ep.graph for ep in exported.values())
        for name, ep in exported.items():
            self.methods[name] = _Method(identify(optimize(to_edge(ep, name=name, preserve_ops=self.preserve_ops))))

    def another(
        self, method: str, partitioners: Sequence[Partitioner], plan: SavedPlan | None = None, *, keep_all: bool = False
    ) -> Compiler:
        """One for a method alone, as it is here, with other partitioners; each partition is compiled once for both.

        Args:
            method: its name.
            partitioners: in order of preference.
            plan: that says what runs at the same time.
            keep_all: partitions stand however small they are.
        """
        rules = self.selection.rules
        rules = replace(rules, min_partition_size=0) if keep_all else rules
        made = Compiler(replace(self.selection, rules=rules), self.kernels, None, self.kept)
        made.methods[method] = _Method(self.methods[method].edge)
        made.partitioners, made.artifacts, made.beside = tuple(partitioners), self.artifacts, plan
        return made

    def plan(self) -> None:
        """Plan all methods."""
        for method in self.methods.values():
            self._plan(method)

    def emitted(self) -> tuple[Program, list[LoweredProgram]]:
        """The program, and its methods, those lowered that are not yet.

        Raises:
            PartitionError: nodes stay portable, and the policy forbids that.
        """
        lowered = [method.lowered or self._lower(method) for method in self.methods.values()]
        keep, policy = self.selection.keeps, self.selection.fallback.policy
        self.told = []
        program = emit(lowered, self.kernels, keep=keep, on_fallback=policy, tell=self.told.append)
        results = {name: d.result for part in lowered for name, d in part.delegates.items()}
        self.notes = {d.name: (*results[d.name].notes, *_of_unasked(d, keep)) for d in program.delegates}
        return program, lowered

    def check(self) -> None:
        """Raise the errors of `emitted` that need no compiled partition: artifacts are empty."""
        empty = dict.fromkeys(self.selection.backends, _compile_nothing)
        self.artifacts = Artifacts(empty)
        self.emitted()

    def move(self, moved: Mapping[str, Moved]) -> None:
        """Have nodes of partitions run elsewhere, when the program is next emitted."""
        for method in self.methods.values():
            assert method.lowered is not None
            for name, delegate in method.lowered.delegates.items():
                if name in moved:
                    verdict, origins = no(Reason.INACCURATE, moved[name].why), method.origins[name]
                    method.refuse(delegate.backend, {origins[n]: verdict for n in moved[name].nodes if n in origins})

    def report(self) -> Report:
        """Who runs what, and why not elsewhere."""
        report = make_report(self.plans, self.notes, self.selection.notes)
        backends = {name: self.selection.backends[name] for name in dict.fromkeys(p.backend for p in report.partitions)}
        return replace(report, load_rules={name: backend.option_rules() for name, backend in backends.items()})

    def _lower(self, method: _Method) -> LoweredProgram:
        """Plan a method and compile its partitions, planning again without the nodes that a library turns down."""
        for turn in itertools.count():
            made = self._plan(method)
            _refuse_portable(made, self.selection)
            found = candidates(made, self.selection.capabilities, method.candidates)
            delegates, refused = self._compile(found, whole=turn >= _PATIENCE)
            if not refused:
                break
            for backend, reasons in refused.items():
                method.refuse(backend, {node: no(Reason.REFUSED, why) for node, why in reasons.items()})
        method.origins = {c.partition.name: c.origins for c in found}
        method.lowered = lower(made, delegates)
        return method.lowered

    def _plan(self, method: _Method) -> Plan:
        """The plan of a method. Compound operators that nobody runs, whole or in parts, are taken apart first."""
        forms = Forms(self.preserve_ops)
        while True:
            made = self._planned(method)
            apart = [node for part in made.walk() for node in part.to_take_apart]
            if not apart:
                method.plan = made
                return made
            method.edge = identify(optimize(forms.apart(method.edge, apart)))
            method.candidates.clear()

    def _planned(self, method: _Method) -> Plan:
        made = self._planned_alone(method)
        return made if self.beside is None else self.beside.grouped(made)

    def _planned_alone(self, method: _Method) -> Plan:
        others = (m.plan for m in self.methods.values() if m is not method and m.plan is not None)
        return plan_graph(
            method.edge,
            self.partitioners,
            self.selection.capabilities,
            self.selection.rules,
            refusals=method.refusals,
            taken=[p.name for plan in others for part in plan.walk() for p in part.partitions],
            has_kernel=lambda node: has_kernel(node, self.kernels),
        )

    def _compile(
        self, found: list[Candidate], *, whole: bool
    ) -> tuple[dict[str, LoweredDelegate], dict[str, dict[Node, str]]]:
        """The compiled partitions by name, and what backends refused: backend -> node -> reason.

        Args:
            found: the candidates of a plan.
            whole: a partition of which a node is refused is given up with all its nodes.
        """
        delegates: dict[str, LoweredDelegate] = {}
        refused: dict[str, dict[Node, str]] = {}
        for candidate in found:
            partition = candidate.partition
            reasons = refused_parts(candidate, self.selection.capabilities[partition.backend])
            if not reasons:
                try:
                    delegates[partition.name] = self.artifacts.delegate(candidate)
                    continue
                except RegionRefused as refusal:
                    reasons = candidate.of_the_plan(refusal.reasons)
                    if whole or not reasons:
                        reasons = dict.fromkeys(partition.nodes, str(refusal)) | reasons
            refused.setdefault(partition.backend, {}).update(reasons)
        return delegates, refused


def _compile_nothing(region: Region) -> PreprocessResult:
    return PreprocessResult(b"")


def _of_unasked(spec: DelegateSpec, keep: Mapping[str, bool]) -> tuple[str, ...]:
    """What the report says of a partition that is kept in kernels because nobody asked for its backend."""
    if keep.get(spec.backend, True):
        return ()
    kept = "is kept in kernels too" if spec.fallback >= 0 else "has no fallback, as no kernels run all of it"
    return (f"nobody named {spec.backend}: it {kept}",)


def _refuse_portable(made: Plan, selection: Selection) -> None:
    """Before anything is compiled: what the policy says of nodes that stay portable though backends were asked for."""
    nodes = [n for part in made.walk() for n in part.nodes if n.backend is None and n.op not in CONTROL_FLOW]
    if selection.on_portable == "error" and nodes and selection.backends:
        remedy = "`delegate explain` says why; or set policy.portable to allow"
        raise PartitionError(portable_message([n.node.name for n in nodes]), where=made.program.name, remedy=remedy)


def portable_message(names: list[str]) -> str:
    return f"{len(names)} nodes stay on portable kernels: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
