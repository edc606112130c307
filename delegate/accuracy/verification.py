"""Accuracy check: run a program on inputs, compare its partitions and results with torch, and find missed bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.accuracy.bounds import DEFAULTS, Bounds, OnFailure, is_quantized, precision_of
from delegate.accuracy.layer_noise import layers_of
from delegate.accuracy.program_run import MethodComparison, ProgramRun
from delegate.accuracy.recording import RecordedInstruction, RunRecorder
from delegate.accuracy.reference import RegionTrial
from delegate.accuracy.samples import Sample, example_samples, origin_of, samples_of
from delegate.backend.aot import PreprocessResult
from delegate.backend.guilty import Unit, find_guilty, nodes_of, units_of
from delegate.common.user_warnings import warn_user
from delegate.errors import AccuracyError, InputError, did_you_mean
from delegate.partitioner.artifacts import Artifacts
from delegate.partitioner.extraction import LoweredDelegate, LoweredProgram
from delegate.program.model import Program
from delegate.registry import Registry
from delegate.report import Report
from delegate.report.rows import Accuracy, InputOrigin, LayerAccuracy, MethodAccuracy
from delegate.runtime.backend import Delegate
from delegate.runtime.delegates import open_blob
from delegate.selection import Selection

_ROUNDS = 4  # of halving the noise of partitions that meet the bounds, if the whole method does not

Blame = Callable[[Sequence[str], Bounds], tuple[str, str]]  # -> the noisiest layers of methods in words, the remedy


@dataclass(frozen=True, slots=True)
class MeasuredAccuracy:
    """The accuracy figures of a program run.

    Args:
        methods: Method name -> its figures.
        partitions: Partition name -> its record, for partitions that a call reached.
    """

    methods: Mapping[str, MethodComparison]
    partitions: Mapping[str, RecordedInstruction]

    def figures(self, partition: str) -> Accuracy | None:
        """Return the figures of a partition; None if no call reached it."""
        entry = self.partitions.get(partition)
        return None if entry is None else entry.differences.accuracy()


@dataclass(frozen=True, slots=True)
class Eviction:
    """The nodes of a partition to move off its backend.

    Args:
        nodes: node names in the partition's region.
        why: the message of the verdict on each node.
    """

    nodes: frozenset[str]
    why: str


def samples_to_verify(inputs: Any, exported: Mapping[str, ExportedProgram]) -> dict[str, list[Sample]]:
    """Return the calls by method: `inputs`, else the example inputs of the export; raises InputError."""
    return example_samples(exported) if inputs is None else samples_of(inputs, exported)


def _require_same_inputs(method: str, model: ExportedProgram, reference: ExportedProgram) -> None:
    """Check that two models take as many inputs."""
    own, others = (ep.call_spec.in_spec.num_leaves for ep in (model, reference))
    if own != others:
        what = f"the program takes {own} inputs, but its reference {others}"
        raise InputError(what, where=f"method {method}", remedy="give the model that the program was lowered from")


@dataclass(slots=True)
class Verification:
    """An accuracy check of programs, which finds the nodes to move off their backends.

    Args:
        exported: the methods.
        samples: the calls to run, by method, in the order in which methods run.
        selection: the backends, the bounds and the policy. Without a policy, methods that miss the default bound of
            their precision are warned of.
        registry: the registry of backends and kernels.
        floats: the float references of methods that are other programs, against which bounds hold.
        blame: describes the layers to blame if the quantization misses the bounds.
        is_on_examples: the calls are the example inputs of the export.

    Attributes:
        bounds: the bounds on the error.
        on_failure: the reaction to a missed bound; None without a policy.
    """

    exported: Mapping[str, ExportedProgram]
    samples: Mapping[str, Sequence[Sample]]
    selection: Selection
    registry: Registry
    floats: Mapping[str, ExportedProgram]
    blame: Blame | None
    is_on_examples: bool
    bounds: Bounds = field(init=False)
    on_failure: OnFailure | None = field(init=False)
    _precisions: Mapping[str, str] = field(init=False)  # by method, a key of `DEFAULTS`
    _rounds: int = 0

    def __post_init__(self) -> None:
        policy = self.selection.verify
        self.bounds, self.on_failure = Bounds.of(policy), None if policy is None else policy.on_failure
        self._precisions = {name: precision_of(self.exported[name]) for name in self.samples}

    @classmethod
    def of(
        cls,
        inputs: Any,
        exported: Mapping[str, ExportedProgram],
        selection: Selection,
        registry: Registry,
        floats: Mapping[str, ExportedProgram],
        blame: Blame | None = None,
    ) -> Verification | None:
        """Return the accuracy check that inputs or the configuration request; None if neither does.

        Args:
            inputs: see `samples_of`; None: the example inputs of the export, if the configuration has bounds.
            exported, selection, registry, floats, blame: as of the class.

        Raises:
            InputError: the inputs are invalid or missing, or a reference belongs to no method.
        """
        if unknown := [name for name in floats if name not in exported]:
            remedy = did_you_mean(unknown[0], exported)
            raise InputError(f"there is no method {unknown[0]!r} for its reference", remedy=remedy)
        for name, reference in floats.items():
            _require_same_inputs(name, exported[name], reference)
        if inputs is None and selection.verify is None:
            return None
        samples = samples_to_verify(inputs, exported)
        return cls(exported, samples, selection, registry, floats, blame, inputs is None)

    def measure(self, program: Program, lowered: Sequence[LoweredProgram]) -> MeasuredAccuracy:
        """Run a program; all methods run in one context, one after another.

        Args:
            program: the compiled program.
            lowered: its lowered methods.

        Raises:
            InputError: the samples do not fit.
            BackendError: a partition cannot be run here.
            AccuracyError: torch cannot run the reference.
        """
        kernels = self.selection.kernels
        run = ProgramRun(program, lowered, self.exported, self.floats, self.samples, self.registry, kernels)
        recorder = RunRecorder(run.delegates, self.bounds, RecordedInstruction)
        methods: dict[str, MethodComparison] = {}
        with run.load() as loaded:
            for method in run.compare(loaded, recorder):
                origin = InputOrigin.EXAMPLE if self.is_on_examples else origin_of(self.samples[method.name])
                floats = None if method.floats is None else replace(method.floats, inputs=origin)
                lowered_accuracy = replace(method.lowered, inputs=origin)
                methods[method.name] = replace(method, lowered=lowered_accuracy, floats=floats)
        return MeasuredAccuracy(methods, recorder.partitions)

    def add_to_report(self, report: Report, measured: MeasuredAccuracy) -> Report:
        """Return the report with the figures, and with the error of each quantized layer on the first sample."""
        partitions = tuple(
            replace(p, accuracy=measured.figures(p.name)) if p.name in measured.partitions else p
            for p in report.partitions
        )
        runs = measured.methods.values()
        accuracy = (*(run.bounded for run in runs), *(run.lowered for run in runs if run.floats is not None))
        return replace(report, partitions=partitions, accuracy=accuracy, layers=tuple(self._layers(measured)))

    def _layers(self, measured: MeasuredAccuracy) -> Iterator[LayerAccuracy]:
        """Yield the rows of methods that have a float reference, and that torch can run node by node."""
        for name, calls in self.samples.items():
            is_compared = name in self.floats and measured.methods[name].bounded.figures is not None
            if is_compared and calls and is_quantized(self._precisions[name]):
                with suppress(AccuracyError):
                    yield from layers_of(name, self.floats[name], self.exported[name], calls[0])

    def to_move(
        self, measured: MeasuredAccuracy, lowered: Sequence[LoweredProgram], artifacts: Artifacts
    ) -> dict[str, Eviction]:
        """Return the nodes to move off their backends so that the bounds hold, by partition.

        Empty if the bounds hold, or if the policy is a warning.

        Raises:
            AccuracyError: a bound is missed, and the policy makes that an error or nothing is left to move.
        """
        if self.on_failure is None:
            self._warn_by_default(measured, lowered)
            return {}
        own = {name for method in lowered if method.program.name not in self.floats for name in method.delegates}
        missed = {name: e for name in own if (e := self.bounds.excess(measured.figures(name))) > 1}
        methods = [r.bounded for r in measured.methods.values() if self.bounds.excess(r.bounded.figures) > 1]
        if not missed and not methods:
            return {}
        undefined = [m for m in methods if m.figures is not None and math.isnan(m.figures.sqnr_db)]
        if undefined:
            remedy = "verify on inputs whose results are finite in torch"
            self._fail_or_warn(
                [f"{_describe_undefined(m)}, but {self.bounds} is required" for m in undefined], "", remedy
            )
            return {}
        quantized = [m.method for m in methods if self.bounds.excess(measured.methods[m.method].gap) > 1]
        if quantized or self.on_failure != "move":
            texts = [*(self._text(measured, name) for name in missed), *map(self._method_text, methods)]
            self._fail_or_warn(texts, *self._describe_blame(measured, quantized))
            return {}
        allowed = 1.0
        if not missed:
            missed = self._noisiest(measured, methods[0], lowered)
            allowed = max(missed.values()) / 2
        return {
            name: Eviction(
                self._find_cause(measured.partitions[name], excess / allowed, allowed, artifacts),
                self._text(measured, name),
            )
            for name, excess in missed.items()
        }

    def _noisiest(
        self, measured: MeasuredAccuracy, missed: MethodAccuracy, lowered: Sequence[LoweredProgram]
    ) -> dict[str, float]:
        """Return the noisiest partition of a method that misses the bounds although its partitions meet them.

        Raises:
            AccuracyError: no partition has noise, or the limit of rounds is reached.
        """
        own = next(method.delegates for method in lowered if method.program.name == missed.method)
        noise = {name: e for name in own if (e := self.bounds.excess(measured.figures(name))) > 0}
        self._rounds += 1
        if not noise or self._rounds > _ROUNDS:
            left = "although every partition meets the bound" if noise else "and no partition left is inaccurate"
            remedy = "relax the bound, or verify on inputs whose results depend less on rounding"
            raise AccuracyError(f"{self._method_text(missed)}, {left}", where="verify", remedy=remedy)
        name = max(noise, key=noise.__getitem__)
        return {name: noise[name]}

    def _find_cause(
        self, partition: RecordedInstruction, excess: float, allowed: float, artifacts: Artifacts
    ) -> frozenset[str]:
        """Return the nodes of a partition to move, by their names in its region."""
        assert partition.delegate is not None
        assert partition.worst is not None
        trial = self._trial(partition.delegate, partition.worst.inputs, artifacts)

        def measure(units: Sequence[Unit]) -> float | None:
            figures = trial.accuracy(units)
            return None if figures is None else self.bounds.excess(figures) / allowed

        guilty = find_guilty(units_of(partition.region), measure, excess)
        return frozenset(node.name for node in nodes_of(guilty))

    def _trial(self, delegate: LoweredDelegate, inputs: Sequence[torch.Tensor], artifacts: Artifacts) -> RegionTrial:
        """Return a runner for parts of a partition on its backend."""

        def open_result(result: PreprocessResult) -> Delegate:
            runtime = self.registry.runtime(delegate.backend)()
            blob, *data = (memoryview(part) for part in (result.blob, *result.data))
            return open_blob(runtime, blob, data, result.compile_specs, trust_code=True)

        return RegionTrial(delegate.region, inputs, partial(artifacts.attempt, delegate.backend), open_result)

    def _describe_blame(self, measured: MeasuredAccuracy, methods: Sequence[str]) -> tuple[str, str]:
        """Describe the methods whose quantization is at fault, and return the remedy."""
        if not methods:
            remedy = "set verify.on_failure to move, which runs the inaccurate nodes elsewhere, or relax the bound"
            return "", remedy
        name = methods[0]
        if not is_quantized(self._precisions[name]) or self.blame is None:
            gap = measured.methods[name].gap
            what = f"the model itself, run by torch, reaches only {gap} against the float reference"
            return f"; {what}", "lower a model that is closer to its reference, or relax the bound"
        figures = ", ".join(f"{measured.methods[name].gap} in method {name}" for name in methods)
        layers, remedy = self.blame(methods, self.bounds)
        if self.selection.quantization is None:
            remedy = f"quantize it again, and {remedy}"
        elif self.on_failure != "move":
            remedy += "\nor set verify.on_failure to move, which does that until the bound holds"
        return f"; the quantization is at fault, not a backend: in torch it reaches {figures}{layers}", remedy

    def _warn_by_default(self, measured: MeasuredAccuracy, lowered: Sequence[LoweredProgram]) -> None:
        """Warn of methods that miss the default bound of their precision."""
        for method in lowered:
            name = method.program.name
            accuracy = measured.methods[name].bounded if name in measured.methods else None
            if accuracy is None or accuracy.figures is None:
                continue
            precision = self._precisions[name]
            least = DEFAULTS[precision]
            if accuracy.figures.sqnr_db >= least:
                continue
            if math.isnan(accuracy.figures.sqnr_db):
                warn_user(_describe_undefined(accuracy))
                continue
            gap = measured.methods[name].gap
            noise = {n: a for n in method.delegates if (a := measured.figures(n)) is not None}
            worst = min(noise, key=lambda n: noise[n].sqnr_db, default="")
            if gap is not None and gap.sqnr_db < least:
                fault = "the quantization is" if is_quantized(self._precisions[name]) else "the model itself is"
                cause = f"{fault} at fault: in torch it reaches {gap}"
            elif worst:
                cause = f"the worst partition is {worst}: {noise[worst]}"
            else:
                cause = "no partition was reached: the portable kernels are at fault"
            cause += "".join(f"; {text}" for text in (accuracy.why, accuracy.nan) if text)
            what = f"method {name} reaches {accuracy.figures} against {accuracy.reference}"
            remedy = (
                f"lower it again with `verify: {{sqnr_db: {least:g}, on_failure: move}}` in the configuration "
                "(`delegate lower --config FILE --verify INPUTS`), or set verify.sqnr_db to a sufficient bound"
            )
            warn_user(f"{what}, but {least:g} dB or more is usual for {precision}; {cause}: {remedy}")

    def _fail_or_warn(self, texts: Sequence[str], cause: str, remedy: str) -> None:
        what = "; ".join(texts) + cause
        if self.on_failure != "warn":
            raise AccuracyError(what, where="verify", remedy=remedy)
        warn_user(f"{what}: {remedy}" if cause else what)

    def _text(self, measured: MeasuredAccuracy, name: str) -> str:
        return f"partition {name} reaches {measured.figures(name)}, but {self.bounds} is required"

    def _method_text(self, method: MethodAccuracy) -> str:
        against = f" against {method.reference}" if method.method in self.floats else ""
        nan = f"; {method.nan}" if method.nan else ""
        return f"method {method.method} reaches {method.figures}{against}, but {self.bounds} is required{nan}"


def _describe_undefined(accuracy: MethodAccuracy) -> str:
    """Describe a method of which no result is finite, neither here nor in the reference."""
    what = f"method {accuracy.method} returns no finite numbers to compare with {accuracy.reference}"
    return "; ".join(filter(None, (what, accuracy.why, accuracy.nan)))
