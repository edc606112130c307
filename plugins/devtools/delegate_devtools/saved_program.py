"""A saved program to debug: its placement and artifacts take the place of a new lowering."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.backend.aot import PreprocessResult, Region
from delegate.backend.decomposition import is_compound_operator
from delegate.edge.keys import fingerprints
from delegate.errors import BackendUnavailable, InputError
from delegate.lowering.compiler import Compiler
from delegate.partitioner.artifacts import Artifacts
from delegate.partitioner.extraction import LoweredProgram
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import AppliedPlan, SavedPartition, SavedPlan
from delegate.placement.strategy import Placed, Strategy
from delegate.plugins import PORTABLE
from delegate.program import file
from delegate.program.instructions import walk
from delegate.program.model import DelegateCall, Program
from delegate.registry import Registry
from delegate.report import Report
from delegate.runtime.delegates import require_no_code
from delegate.runtime.steps import name_partition
from delegate_devtools.recorder import torch_operator

_REMEDY = "give the model, backends and options that the file was lowered with"
_OWN_WEIGHTS = "give the model with the weights that the file was lowered with; random ones need the same seed"
_NAMED = 3  # weights in a message


@dataclass(frozen=True)
class SavedProgram:
    """A program file with debug info, which has the backend and the partition of each node.

    Args:
        program: the content of the file.
        report: The report in its debug info.
        where: the path, for messages.
        trust_code: run its partitions of machine code too.
    """

    program: Program
    report: Report
    where: str
    trust_code: bool

    @classmethod
    def load(cls, path: str | os.PathLike[str], registry: Registry, *, trust_code: bool) -> SavedProgram:
        """Read a program file.

        Raises:
            ProgramError: it cannot be read, or has no debug info.
            BackendFailed: a partition is machine code, and `trust_code` is False.
        """
        program, where = file.load(path), os.fspath(path)
        saved = cls(program, Report.from_json(program.report, where), where, trust_code)
        if not trust_code:
            _require_no_code(program, registry)
        return saved

    @property
    def backends(self) -> list[str]:
        """The backends of its nodes, in their order of preference."""
        queried = [backend for node in self.report.nodes for backend in node.verdicts]
        return [b for b in dict.fromkeys(queried) if b != PORTABLE]

    def lower(self, compiler: Compiler) -> tuple[Program, list[LoweredProgram]]:
        """Return the program of the file, and the methods of the model with its partitions.

        Args:
            compiler: placed by `FromSavedProgram`.

        Raises:
            InputError: the partitions of the model differ from the partitions in the file.
        """
        compiler.plan()
        self._require_same(compiler.report())
        own = compiler.artifacts
        compiler.artifacts = Artifacts(dict.fromkeys(compiler.selection.backends, self._artifact))
        try:
            lowered = compiler.lower()
        finally:
            compiler.artifacts = own
        for method in self.program.methods:
            delegates = next(m.delegates for m in lowered if m.program.name == method.name)
            for call in walk(method.instructions):
                if isinstance(call, DelegateCall):
                    name = self.program.delegates[call.delegate].name
                    region = delegates[name].region
                    if (len(call.inputs), len(call.outputs)) != (len(region.inputs), len(region.outputs)):
                        raise self._other(f"partition {name} of {method.name} has other inputs or outputs")
        return self.program, lowered

    def compare_weights(self, exported: Mapping[str, ExportedProgram]) -> list[str]:
        """Return notes on differences between the model of the file and another one, of the same partitions.

        Raises:
            InputError: weights differ, so the model is not a reference for the file.
        """
        notes = []
        for method, here in fingerprints(exported).items():
            there = self.report.fingerprints.get(method, {})
            other = [name for name in dict.fromkeys((*there, *here)) if here.get(name) != there.get(name)]
            if there and (weights := [name for name in other if name]):
                more = f" and {len(weights) - _NAMED} more" * (len(weights) > _NAMED)
                differ = f"weight{'s' * (len(weights) > 1)} {', '.join(weights[:_NAMED])}{more} of method {method}"
                raise self._other(f"{differ} differ{'s' * (len(weights) == 1)}", _OWN_WEIGHTS)
            if there and other:
                notes.append(
                    f"the graph of method {method} is not that of the file: numbers in it may differ, such as scales "
                    "of a quantization, and errors may come from that"
                )
        return notes

    def _artifact(self, region: Region) -> PreprocessResult:
        spec = next(spec for spec in self.program.delegates if spec.name == region.name)
        blob, *data = (memoryview(self.program.segments[i]) for i in (spec.segment, *spec.data))
        return PreprocessResult(blob, spec.compile_specs, data=tuple(data))

    def _require_same(self, planned: Report) -> None:
        """Raise InputError unless the model has the methods and partitions of the file."""
        if set(planned.methods) != set(self.report.methods):
            names = (", ".join(report.methods) for report in (self.report, planned))
            raise self._other("it has the methods {}, but the model has {}".format(*names))
        here, there = ({(p.method, p.name): (p.backend, p.nodes) for p in r.partitions} for r in (planned, self.report))
        for method, name in dict.fromkeys((*there, *here)):
            if here.get((method, name)) != there.get((method, name)):
                raise self._other(f"partition {name} of method {method} has other nodes")
        if absent := {name for _, name in there} - {spec.name for spec in self.program.delegates}:
            raise self._other(f"it has no artifact of partition {min(absent)}")

    def _other(self, what: str, remedy: str = _REMEDY) -> InputError:
        return InputError(f"the file is not of this model: {what}", where=self.where, remedy=remedy)


def _require_no_code(program: Program, registry: Registry) -> None:
    """Raise BackendFailed if a partition is machine code; a backend that cannot be used here opens none."""
    for spec in program.delegates:
        with suppress(BackendUnavailable):
            runtime = registry.runtime(spec.backend)
            try:
                require_no_code(runtime(), spec.compile_specs)
            except (Exception, SystemExit) as error:  # a plugin may raise anything
                raise name_partition(spec, error, "") from error


class FromSavedProgram(Strategy):
    """The placement of a saved program.

    Args:
        saved: the program.
    """

    def __init__(self, saved: SavedProgram) -> None:
        operators = {node.op: torch_operator(node.op) for node in saved.report.nodes}
        preserved = (name for name, op in operators.items() if op is not None and is_compound_operator(op))
        super().__init__(plan=SavedPlan((), tuple(preserved)))
        self.backends = tuple(saved.backends)
        self._partitions: dict[tuple[str, str], SavedPartition] = {}
        for node in saved.report.nodes:
            if node.partition:
                graph, _, name = f"{node.method}.{node.name}".rpartition(".")
                self._partitions[graph, name] = SavedPartition(graph, node.partition, node.backend, ())

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], check: Verify) -> Placed:
        """Return the compiler, which assigns each node as in the file."""
        compiler.applied = AppliedPlan(self._partitions, name_of=lambda node: node.name)
        return Placed(compiler, exported)

    def require_applied(self, plans: Sequence[Plan]) -> None:
        """`SavedProgram.lower` compares the plans."""
