"""The compiler: it plans and compiles the methods of a program, and replans without nodes that a library rejects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch.export import ExportedProgram
from torch.fx import Node

from delegate.accuracy.verification import Eviction
from delegate.backend.aot import PreprocessResult, Region, RegionFailed, RegionRefused
from delegate.backend.decomposition import DecompositionPolicy, is_compound
from delegate.backend.deviations import deviation_notes
from delegate.cache.aot.artifacts import ArtifactCache
from delegate.costs.estimates import Estimates
from delegate.edge.control_flow import CONTROL_FLOW, subprograms
from delegate.edge.decompose import compound_operators
from delegate.edge.export import to_edge
from delegate.edge.graphs import identify, identity
from delegate.edge.node import op_name
from delegate.edge.passes.pipeline import optimize
from delegate.edge.program import DecompositionRound, EdgeProgram
from delegate.edge.signature import with_shared_states
from delegate.emit.program import emit, has_kernel
from delegate.errors import PartitionError
from delegate.events import stage
from delegate.kernels.selection import Kernels
from delegate.partitioner.artifacts import Artifacts
from delegate.partitioner.extraction import (
    LoweredDelegate,
    LoweredProgram,
    PlannedRegion,
    find_refused_parts,
    lower,
    plan_regions,
)
from delegate.partitioner.partitioner import Partitioner
from delegate.partitioner.plan import Plan
from delegate.partitioner.planning import plan as plan_graph
from delegate.partitioner.reporting import make_report
from delegate.partitioner.saved import BY_THE_PLAN, AppliedPlan, SavedPlan
from delegate.partitioner.search import Search
from delegate.program.model import DelegateSpec, Program
from delegate.report import Report
from delegate.runtime.option_rules import Rules
from delegate.selection import Selection
from delegate.verdict import Reason, Verdict, no

Result = TypeVar("Result")

# Partial writes: torch decomposes them into work on the whole tensor; the kernels write only the part.
_WRITES = frozenset({"aten.select_scatter.default"})
MAX_REPLANS = 20  # without single rejected nodes; after these, a partition with a rejected node is given up


@dataclass
class _Method:
    """A method that is being compiled.

    Args:
        edge: its program in edge dialect, with preserved operators.
        refusals: backend -> nodes that it rejected after its support check -> the verdict.
        plan: the backend of each node; None if it has to be planned (again).
        origins: partition name -> name of a node in its region -> the node in the plan.
        regions: the planned regions of the plans so far, over the current graph.
        lowered: the method with its partitions extracted; None if it has to be lowered (again).
    """

    edge: EdgeProgram
    refusals: dict[str, dict[Node, Verdict]] = field(default_factory=dict)
    plan: Plan | None = None
    origins: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)
    regions: dict[Hashable, PlannedRegion] = field(default_factory=dict)
    lowered: LoweredProgram | None = None

    def refuse(self, backend: str, verdicts: Mapping[Node, Verdict]) -> None:
        """Replan the method without these nodes on a backend."""
        self.refusals.setdefault(backend, {}).update(verdicts)
        self.forget_plan()

    def forget_plan(self) -> None:
        """Plan and lower the method again, by the next `compile`."""
        self.plan = self.lowered = None


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """A region of a method that its backend failed to compile without naming nodes."""

    method: str
    backend: str
    region: Region


@dataclass
class Compiler:
    """A compiler for the methods of one program; partition names are unique among them.

    The steps of a method are its edge program, a plan, regions, artifacts, after which the partitions are extracted.

    Attributes:
        decomposed: compound operators that are not preserved for any backend.
        failures: the regions that backends failed to compile, so that nodes of them were moved.
        applied: the plan to apply; None: plans are by costs.
        costs: plans are the cheapest by these estimates; None: plans are by preference.
        ways: method -> the way that its plan takes; the cheapest one by default; see `delegate.partitioner.search`.
        reserved: partition names of other methods in the program, which are not given again.
    """

    selection: Selection
    kernels: Kernels
    saved: SavedPlan | None = None
    artifact_cache: ArtifactCache | None = None
    decomposed: frozenset[str] = frozenset()
    methods: dict[str, _Method] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    kernel_notes: list[str] = field(default_factory=list)
    failures: list[CompileFailure] = field(default_factory=list)
    applied: AppliedPlan | None = None
    costs: Estimates | None = None
    ways: dict[str, str] = field(default_factory=dict)
    reserved: Sequence[str] = ()
    artifacts: Artifacts = field(init=False)
    partitioners: Sequence[Partitioner] = field(init=False)

    def __post_init__(self) -> None:
        self.partitioners = self.selection.partitioners
        if self.saved is not None:
            self.apply(self.saved, BY_THE_PLAN)
        backends = self.selection.backends.items()
        checks = {name: backend.check_artifact for name, backend in backends}
        self.artifacts = Artifacts({name: b.preprocess for name, b in backends}, self.artifact_cache, checks)

    @property
    def preserve_ops(self) -> frozenset[str]:
        """The compound operators that are preserved for a backend or a kernel.

        A saved plan lists the operators that were preserved when it was made: it refers to their nodes, and constants
        were folded with them.
        """
        if self.saved is not None and self.saved.whole is not None:
            return frozenset((*self.saved.whole, *_WRITES))
        requested = (op for b in self.selection.backends.values() for op in b.preserve_ops)
        return frozenset((*requested, *self.kernels.torch_free.whole_ops, *_WRITES)) - self.decomposed

    @property
    def plans(self) -> list[Plan]:
        """The plan of every method that has one."""
        return [m.plan for m in self.methods.values() if m.plan is not None]

    def add_methods(self, exported: Mapping[str, ExportedProgram]) -> None:
        """Convert methods to edge dialect, and add them or replace the methods of the same names."""
        self.selection.warm_up(ep.graph for ep in exported.values())
        edges = {name: method.edge for name, method in self.methods.items()}
        for name, ep in exported.items():
            with stage("export to edge", name):
                edges[name] = to_edge(ep, name=name, preserve_ops=self.preserve_ops)
        rounds = () if self.saved is None else self.saved.decompositions
        for name, edge in with_shared_states(edges).items():
            is_new = name in exported
            planned = repeat_rounds(identify(optimize(edge)), rounds, self.preserve_ops) if is_new else edge
            self.methods[name] = _Method(planned)

    def fork_with(self, edges: Mapping[str, EdgeProgram]) -> Compiler:
        """Return a compiler of the same methods, of which some have other programs; see `_fork`."""
        methods = {name: _Method(edges.get(name, method.edge)) for name, method in self.methods.items()}
        return self._fork(methods, costs=self.costs)

    def fork_for_way(
        self, method: str, way: str | None, costs: Estimates | None = None, *, keep_all: bool = False
    ) -> Compiler:
        """Return a compiler of one method, in its present form, whose plan takes a way; see `_fork`.

        Args:
            method: the name of the method.
            way: the name of the way; None: the plan is by preference.
            costs: the estimates of the plan; None: the estimates of this compiler.
            keep_all: keep small partitions too.
        """
        rules = replace(self.selection.rules, min_partition_size=0) if keep_all else self.selection.rules
        return self._fork(
            {method: _Method(self.methods[method].edge)},
            selection=replace(self.selection, rules=rules),
            reserved=self._other_names(self.methods[method]),
            costs=None if way is None else costs or self.costs,
            ways={} if way is None else {method: way},
        )

    def _fork(self, methods: dict[str, _Method], **changes: Any) -> Compiler:
        """Return a compiler with other methods, and no plan to apply; both share their artifacts and failures."""
        fork = replace(self, saved=None, applied=None, methods=methods, **{"ways": {}, "reserved": (), **changes})
        fork.artifacts, fork.notes, fork.warnings = self.artifacts, {}, []
        return fork

    def adopt(self, method: str, way: str, fork: Compiler) -> None:
        """Take a way for a method, as a fork of it has compiled it."""
        self.ways[method], self.methods[method] = way, fork.methods[method]

    def plan(self) -> None:
        """Plan all methods."""
        self._settle(lambda: [self._plan_method(method) for method in self.methods.values()])

    def plan_each_backend_first(self) -> list[dict[str, Plan]]:
        """Return plans of each method: backend -> the plan that prefers it, with small partitions too."""
        result = []
        for name, method in self.methods.items():
            fork = self.fork_for_way(name, None, keep_all=True)
            fork.plan()  # decomposes what none of the backends and no kernel runs
            method.edge = fork.methods[name].edge
            plans: dict[str, Plan] = {}
            for first in self.partitioners:
                fork.partitioners = [first, *(p for p in self.partitioners if p is not first)]
                plans[first.backend] = fork._plan_once(fork.methods[name])
            result.append(plans)
        return result

    def apply(self, plan: SavedPlan, refusal: Verdict) -> None:
        """Assign nodes as in a plan, by the next `compile`.

        Args:
            plan: The plan of the present graphs.
            refusal: the verdict on a node that a backend supports but the plan assigns to another one.

        Raises:
            PartitionError: the plan names a backend that is not selected.
        """
        if unknown := sorted(set(plan.backends) - self.selection.backends.keys()):
            what = f"the plan runs nodes on {unknown[0]!r}, which is not among the backends"
            raise PartitionError(what, remedy="name it too, or lower without the plan")
        self.costs, self.applied = None, AppliedPlan.of(plan, refusal)
        for method in self.methods.values():
            method.forget_plan()

    def compile(self) -> tuple[Program, list[LoweredProgram]]:
        """Lower the methods that are not lowered yet, and return the program and its methods; raises as `lower`."""
        lowered = self.lower()
        keep, policy = self.selection.keeps, self.selection.fallback.policy
        self.warnings = []
        with stage("emit"):
            program = emit(lowered, self.kernels, keep=keep, on_fallback=policy, warn=self.warnings.append)
        self.kernel_notes = self.kernels.notes_on(program.operators)
        results = {name: d.result for part in lowered for name, d in part.delegates.items()}
        deviations = self._deviation_notes()
        self.notes = {
            d.name: (*results[d.name].notes, *deviations[d.name], *_fallback_notes(d, keep)) for d in program.delegates
        }
        return program, lowered

    def _deviation_notes(self) -> dict[str, tuple[str, ...]]:
        """Return the notes on partitions whose backends compute some of their operators otherwise than torch."""
        return {
            p.name: tuple(deviation_notes(self.selection.backends[p.backend].deviations, map(op_name, p.nodes)))
            for plan in self.plans
            for p in plan.all_partitions()
        }

    def lower(self) -> list[LoweredProgram]:
        """Lower the methods that are not lowered yet, and return all.

        Raises:
            PartitionError: nodes stay portable, and the policy forbids that.
        """
        return self._settle(lambda: [method.lowered or self._lower(method) for method in self.methods.values()])

    def check(self) -> None:
        """Raise the errors of `compile` that need no compiled partition, by compiling to empty artifacts."""
        empty = dict.fromkeys(self.selection.backends, _compile_nothing)
        self.artifacts = Artifacts(empty)
        self.compile()

    def move(self, moved: Mapping[str, Eviction]) -> None:
        """Move nodes of partitions off their backends, by the next `compile`."""
        for method in self.methods.values():
            lowered = method.lowered
            assert lowered is not None
            method.forget_plan()  # all partitions are numbered again
            for name, delegate in lowered.delegates.items():
                if name in moved:
                    verdict, origins = no(Reason.INACCURATE, moved[name].why), method.origins[name]
                    method.refuse(delegate.backend, {origins[n]: verdict for n in moved[name].nodes if n in origins})

    def report(self) -> Report:
        """Return the report: the backend of each node, and the verdicts of the others."""
        return make_report(self.plans, self.notes, (*self.selection.report_notes(), *self.kernel_notes), self.costs)

    def load_rules(self) -> Rules:
        """Return the accepted values of options by backend of a partition, for loading the program."""
        partitions = (p for plan in self.plans for p in plan.all_partitions())
        backends = dict.fromkeys(p.backend for p in partitions)
        return {name: self.selection.backends[name].option_rules() for name in backends}

    def _settle(self, work: Callable[[], list[Result]]) -> list[Result]:
        """Repeat work on all methods until it drops no backend, so that no method runs nodes on a dropped one."""
        while True:
            dropped = self.selection.dropped.keys()
            for method in self.methods.values():  # forks may have dropped a backend of an earlier plan
                if method.plan is not None and any(p.backend in dropped for p in method.plan.all_partitions()):
                    method.forget_plan()
            results = work()
            if self.selection.dropped.keys() == dropped:
                return results
            for method in self.methods.values():
                method.forget_plan()

    def _lower(self, method: _Method) -> LoweredProgram:
        """Plan a method and compile its partitions; replan without the nodes that a library rejects."""
        for replans in itertools.count():
            plan = method.plan or self._plan_method(method)
            _require_no_portable(plan, self.selection)
            regions = plan_regions(plan, self.selection.backends, method.regions)
            delegates, refused = self._compile_regions(
                plan.program.name, regions, give_up_partitions=replans >= MAX_REPLANS
            )
            if not refused:
                break
            for backend, reasons in refused.items():
                method.refuse(backend, {node: no(Reason.REFUSED, why) for node, why in reasons.items()})
        method.origins = {c.partition.name: c.origins for c in regions}
        method.lowered = lower(plan, delegates)
        return method.lowered

    def _plan_method(self, method: _Method) -> Plan:
        """Plan a method, after decomposing the compound operators that neither a backend nor a kernel runs."""
        while True:
            plan = self._plan_once(method)
            nodes = {part.program.name: part.needs_decomposition for part in plan.walk() if part.needs_decomposition}
            if not nodes:
                method.plan = plan
                return plan
            method.edge = decompose(method.edge, nodes, self.preserve_ops)
            method.regions.clear()

    def _plan_once(self, method: _Method) -> Plan:
        search = None if self.costs is None else Search(self.costs, self.ways.get(method.edge.name))
        return plan_graph(
            method.edge,
            self.partitioners,
            self.selection.backends,
            self.selection.rules,
            refusals=method.refusals,
            taken=self._other_names(method),
            has_kernel=lambda node: has_kernel(node, self.kernels),
            search=self.applied or search,
        )

    def _other_names(self, method: _Method) -> list[str]:
        """Return the partition names of other methods."""
        others = (m.plan for m in self.methods.values() if m is not method and m.plan is not None)
        return [*self.reserved, *(p.name for plan in others for p in plan.all_partitions())]

    def _compile_regions(
        self, method: str, regions: list[PlannedRegion], *, give_up_partitions: bool
    ) -> tuple[dict[str, LoweredDelegate], dict[str, dict[Node, str]]]:
        """Return the compiled partitions by name, and the rejected nodes: backend -> node -> reason.

        Args:
            method: its name.
            regions: The regions that its plan has.
            give_up_partitions: give up all nodes of a partition if one of them is rejected.
        """
        delegates: dict[str, LoweredDelegate] = {}
        refused: dict[str, dict[Node, str]] = {}
        for planned in regions:
            partition = planned.partition
            reasons = find_refused_parts(planned, self.selection.backends[partition.backend])
            if not reasons:
                try:
                    delegates[partition.name] = self.artifacts.delegate(planned)
                    continue
                except RegionRefused as refusal:
                    if isinstance(refusal.__cause__, RegionFailed):
                        self.failures.append(CompileFailure(method, partition.backend, planned.region))
                    reasons = planned.of_the_plan(refusal.reasons)
                    if give_up_partitions or not reasons:
                        reasons = dict.fromkeys(partition.nodes, str(refusal)) | reasons
            refused.setdefault(partition.backend, {}).update(reasons)
        return delegates, refused


def _compile_nothing(region: Region) -> PreprocessResult:
    return PreprocessResult(b"")


def _fallback_notes(spec: DelegateSpec, keep: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the notes on the kernel fallback of a partition whose backend was selected automatically."""
    if keep.get(spec.backend, True):
        return ()
    state = "also saved in kernels" if spec.fallback >= 0 else "without a fallback, because no kernels run all of it"
    return (f"{spec.backend} was selected automatically: its partition is {state}",)


def _require_no_portable(plan: Plan, selection: Selection) -> None:
    """Raise PartitionError if nodes stay portable and the policy forbids that."""
    nodes = [n for part in plan.walk() for n in part.nodes if n.backend is None and n.op not in CONTROL_FLOW]
    if selection.on_portable == "error" and nodes and selection.backends:
        remedy = "`delegate explain` shows why; or set policy.portable to allow"
        raise PartitionError(portable_message([n.node.name for n in nodes]), where=plan.program.name, remedy=remedy)


def portable_message(names: list[str]) -> str:
    what = "1 node stays on portable kernels" if len(names) == 1 else f"{len(names)} nodes stay on portable kernels"
    return f"{what}: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


def decompose(program: EdgeProgram, nodes: Mapping[str, Sequence[Node]], preserve_ops: Set[str]) -> EdgeProgram:
    """Decompose compound nodes of a method in one round, in place, and run the passes.

    Names of nodes and folded constants depend on which nodes are decomposed together, so plans record the rounds.

    Args:
        program: the method, which records the round.
        nodes: name of the graph, the method's or one of its control flow -> its nodes to decompose.
        preserve_ops: operators of decompositions that are preserved.

    Raises:
        LoweringError: torch cannot decompose an operator.
    """
    done = {graph: tuple(map(identity, own)) for graph, own in nodes.items()}
    program = DecompositionPolicy(preserve_ops).decompose(program, itertools.chain.from_iterable(nodes.values()))
    preserved = program.preserved | (compound_operators(program.graph_module) & preserve_ops)
    recorded = replace(program, preserved=preserved, decompositions=(*program.decompositions, done))
    return identify(optimize(recorded))


def repeat_rounds(program: EdgeProgram, rounds: Iterable[DecompositionRound], preserve_ops: Set[str]) -> EdgeProgram:
    """Decompose the nodes of earlier rounds that are in a method; rounds of other methods are skipped.

    Args:
        program: the method.
        rounds: as `EdgeProgram.decompositions`.
        preserve_ops: see `decompose`.
    """
    for each in rounds:
        nodes: dict[str, list[Node]] = {}
        for graph in _graphs(program):
            if graph.name in each:
                compounds = {identity(n): n for n in graph.graph.nodes if is_compound(n)}
                nodes[graph.name] = [compounds[name] for name in each[graph.name] if name in compounds]
        if any(nodes.values()):
            program = decompose(program, nodes, preserve_ops)
    return program


def _graphs(program: EdgeProgram) -> list[EdgeProgram]:
    return [program, *(graph for body in subprograms(program).values() for graph in _graphs(body))]
