"""to_backend: the ahead-of-time path, from an exported program to a compiled one, on one screen."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node
from torch.nn import Module

from delegate.backends.aot import RegionRefused
from delegate.compiled import CompiledProgram
from delegate.edge.control_flow import CONTROL_FLOW
from delegate.edge.decompose import decompose
from delegate.edge.export import to_edge
from delegate.edge.passes.pipeline import optimize
from delegate.edge.program import EdgeProgram
from delegate.edge.sources import exported_programs
from delegate.emit.copies import state_copies
from delegate.emit.leftovers import compounds_without_kernel
from delegate.emit.program import emit
from delegate.errors import PartitionError
from delegate.kernels.libraries import Wanted
from delegate.partitioner.cut import LoweredDelegate, LoweredProgram, lower, regions
from delegate.partitioner.plan import Plan
from delegate.partitioner.planning import Refusals, plan
from delegate.partitioner.reporting import make_report
from delegate.plugins import PORTABLE
from delegate.registry import default_registry
from delegate.report import Report
from delegate.runtime.kernels import Kernels, kernels_of
from delegate.selection import ConfigSource, Request, Selection, select

# Writes of a part that torch would decompose into work on the whole tensor; the kernels of these write the part alone.
_WRITES = frozenset({"aten.select_scatter.default"})
_PATIENCE = 20  # rounds of planning again without what a library refused, before its partitions are given up whole

Exported = ExportedProgram | str | os.PathLike[str]
Model = Exported | Mapping[str, Exported] | Module


def to_backend(
    model: Model,
    backends: Request = None,
    *,
    config: ConfigSource = None,
    kernels: Wanted | None = None,
    example_inputs: tuple[Any, ...] | None = None,
) -> CompiledProgram:
    """Find for every operator which backend can run it, lower the partitions, and compile what is left.

    Args:
        model: an ExportedProgram, the path of a .pt2 file, or a dict of these by method name; with `example_inputs` a
            module, traced, scripted or eager, or the path of a TorchScript file.
        backends: a name, a `Partitioner`, or a list of these in order of preference; [] for portable kernels alone.
            If neither this nor a configuration names backends, all that are available on this machine are used.
        config: path of a YAML file, the same as a dict, or a `Config`.
        kernels: kernel libraries for what no backend takes, in order of preference; see `delegate.load`. A saved
            program does not hold them; torch's own ("aten") have no say in how it is compiled: it runs without them.
        example_inputs: positional arguments of a module, whose sizes the program will take; for dynamic sizes, export
            the module yourself.

    Raises:
        ExportError: the model is none of these, or cannot be brought to core ATen.
        ConfigError: the configuration is wrong.
        KernelError: a kernel library cannot be used.
        BackendError: a backend that was asked for cannot be used.
        PartitionError: nodes stay portable and the policy forbids it.
        LoweringError: an operator is left that no kernel runs.
    """
    registry = default_registry()
    selection = select(backends, config, registry, kernels)
    compiler = _Compiler(selection, kernels_of(registry, selection.kernels))
    exported = exported_programs(model, example_inputs)
    lowered = [compiler.lower(name, ep) for name, ep in exported.items()]
    report = compiler.report()
    _apply_policy(report, selection)
    keep, policy = selection.fallback.keep, selection.fallback.policy
    program = emit(lowered, compiler.kernels, keep_fallbacks=keep, on_fallback=policy)
    report = state_copies(report, program, lowered)
    program = program._replace(report=report.to_json())
    specs = {name: (ep.call_spec.in_spec, ep.call_spec.out_spec) for name, ep in exported.items()}
    return CompiledProgram(program, specs, report, registry, selection.kernels)


def explain(
    model: Model, backends: Request = None, *, config: ConfigSource = None, kernels: Wanted | None = None
) -> Report:
    """The report of `to_backend` without lowering: what each backend says it can run. Raises as `to_backend` does."""
    registry = default_registry()
    selection = select(backends, config, registry, kernels)
    compiler = _Compiler(selection, kernels_of(registry, selection.kernels))
    for name, ep in exported_programs(model).items():
        compiler.plan(compiler.edge(name, ep))
    return compiler.report()


@dataclass
class _Compiler:
    """Lowers the methods of one program; partition names are unique among them."""

    selection: Selection
    kernels: Kernels
    plans: list[Plan] = field(default_factory=list)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def edge(self, name: str, ep: ExportedProgram) -> EdgeProgram:
        """The optimised edge program of a method, with the operators whole that backends, or else kernels, want so.

        A backend may run the parts of what kernels run faster whole: where there are backends, theirs alone count.
        """
        preserve_ops = self.selection.preserve_ops if self.selection.backends else self.kernels.torch_free.whole_ops
        return optimize(to_edge(ep, name=name, preserve_ops=preserve_ops | _WRITES))

    def plan(self, edge: EdgeProgram, refusals: Refusals | None = None) -> Plan:
        """The plan of a method. Compound operators that no backend took and no kernel runs are decomposed first."""
        while True:
            made = self._plan(edge, refusals or {})
            leftover = [n for p in made.walk() for n in self._to_decompose(p)]
            if not leftover:
                self.plans.append(made)
                return made
            edge = optimize(decompose(edge, leftover))

    def lower(self, name: str, ep: ExportedProgram) -> LoweredProgram:
        """Plan a method and compile its partitions, planning again without the nodes that a library turns down."""
        edge = self.edge(name, ep)
        refusals: dict[str, dict[Node, str]] = {}
        for turn in itertools.count():
            made = self.plan(edge, refusals)
            delegates, refused = self._preprocess(made, whole=turn >= _PATIENCE)
            if not refused:
                break
            self.plans.remove(made)
            edge = made.program
            for backend, reasons in refused.items():
                refusals.setdefault(backend, {}).update(reasons)
        self.notes.update((name, d.result.notes) for name, d in delegates.items())
        return lower(made, delegates)

    def report(self) -> Report:
        """Who runs what, and why not elsewhere."""
        return make_report(self.plans, self.notes, self.selection.notes)

    def _plan(self, edge: EdgeProgram, refusals: Refusals) -> Plan:
        checks = {name: b.check for name, b in self.selection.backends.items()}
        taken = [p.name for done in self.plans for part in done.walk() for p in part.partitions]
        return plan(edge, self.selection.partitioners, checks, self.selection.rules, refusals=refusals, taken=taken)

    def _to_decompose(self, made: Plan) -> list[Node]:
        portable = {n.node for n in made.nodes if n.backend is None}
        return [n for n in compounds_without_kernel(made.program.graph, self.kernels) if n in portable]

    def _preprocess(self, made: Plan, *, whole: bool) -> tuple[dict[str, LoweredDelegate], dict[str, dict[Node, str]]]:
        """The compiled partitions, and what the libraries refused: backend -> node -> reason.

        Args:
            made: the plan.
            whole: a partition of which a node is refused is given up with all its nodes.
        """
        partitions = {p.name: p for part in made.walk() for p in part.partitions}
        delegates: dict[str, LoweredDelegate] = {}
        refused: dict[str, dict[Node, str]] = {}
        for name, region in regions(made).items():
            backend = partitions[name].backend
            try:
                result = self.selection.backends[backend].preprocess(region)
                delegates[name] = LoweredDelegate(backend, result, region)
            except RegionRefused as refusal:
                others = str(refusal) if whole else ""
                told = {n: refusal.reasons.get(n.name, others) for n in partitions[name].nodes}
                reasons = {n: reason for n, reason in told.items() if reason}
                refused.setdefault(backend, {}).update(reasons)
        return delegates, refused


def _apply_policy(report: Report, selection: Selection) -> None:
    """What the configuration wants of nodes that stay portable though backends were asked for.

    Control flow itself is no such node: the runtime runs it, and no kernel does.
    """
    names = [n.name for n in report.nodes if n.backend == PORTABLE and n.op not in CONTROL_FLOW]
    if selection.on_portable == "allow" or not names or not selection.backends:
        return
    message = f"{len(names)} nodes stay on portable kernels: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
    if selection.on_portable == "error":
        raise PartitionError(message, remedy="`delegate explain` says why; or set policy.portable to allow")
    warnings.warn(message, RuntimeWarning, stacklevel=3)
