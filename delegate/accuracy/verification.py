"""Accuracy check: run a program on inputs, compare its partitions and results with torch, and find missed bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from delegate.accuracy.bounds import DEFAULTS, Bounds, OnFailure, is_quantized, precision_of
from delegate.accuracy.figures import Differences
from delegate.accuracy.nan import NanCall, NanSource, nan_text
from delegate.accuracy.recording import CallRecorder, WatchedPartition
from delegate.accuracy.reference import (
    EagerMethods,
    copies,
    flat_arguments,
    is_random_method,
    tensors,
    written_buffers,
)
from delegate.accuracy.samples import Sample, example_samples, origin_of, samples_of
from delegate.accuracy.trial import RegionTrial
from delegate.backends.aot import PreprocessResult, Region
from delegate.backends.guilty import Unit, find_guilty, nodes_of, units_of
from delegate.compiled import LoadedContext
from delegate.edge.node import shape_text
from delegate.edge.states import buffers_of_states
from delegate.errors import AccuracyError, InputError, did_you_mean
from delegate.kernels.libraries import KernelRequest
from delegate.partitioner.artifacts import Artifacts
from delegate.partitioner.extraction import LoweredDelegate, LoweredProgram
from delegate.program.model import Program
from delegate.registry import Registry
from delegate.report import Report
from delegate.report.rows import Accuracy, InputOrigin, MethodAccuracy
from delegate.runtime.backend import Delegate
from delegate.runtime.delegates import open_blob
from delegate.runtime.loaded import LoadedProgram
from delegate.selection import Selection
from delegate.user_warnings import warn_user

_ROUNDS = 4  # of halving the noise of partitions that meet the bounds, if the whole method does not

FLOAT = "the float reference"
QUANTIZED = "the quantized reference"
MODEL = "the model that was given"  # a second reference that is not quantized

Blame = Callable[[Sequence[str], Bounds], tuple[str, str]]  # -> the noisiest layers of methods in words, the remedy


@dataclass(frozen=True, slots=True)
class MeasuredAccuracy:
    """The accuracy figures of a run of a program.

    Args:
        methods: of whole methods against the reference that the bounds are for, by name.
        partitions: by name, including those that no call reached.
        against_lowered: of methods with a float reference against the program that was lowered, by name.
        reference_gap: of these lowered programs against their float references, both run by torch.
    """

    methods: Mapping[str, MethodAccuracy]
    partitions: Mapping[str, WatchedPartition]
    against_lowered: Mapping[str, MethodAccuracy]
    reference_gap: Mapping[str, Accuracy | None]

    def add_to(self, report: Report) -> Report:
        """Return the report with the figures."""
        partitions = (
            replace(p, accuracy=self.partitions[p.name].differences.accuracy()) if p.name in self.partitions else p
            for p in report.partitions
        )
        accuracy = (*self.methods.values(), *self.against_lowered.values())
        return replace(report, partitions=tuple(partitions), accuracy=accuracy)


@dataclass(frozen=True, slots=True)
class Eviction:
    """The nodes of a partition to move off its backend.

    Args:
        nodes: names of nodes of the partition's region.
        why: the message of the verdict on each node.
    """

    nodes: frozenset[str]
    why: str


def verification(
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
        exported: the methods.
        selection: the backends, and the policy.
        registry: the registry of backends and kernels.
        floats: the float references of methods that are other programs, e.g. quantized ones.
        blame: describes the layers to blame if the quantization misses the bounds.

    Raises:
        InputError: the inputs are invalid or missing, or a reference belongs to no method.
    """
    if unknown := [name for name in floats if name not in exported]:
        raise InputError(
            f"there is no method {unknown[0]!r} for its reference", remedy=did_you_mean(unknown[0], exported)
        )
    for name, reference in floats.items():
        _require_same_inputs(name, exported[name], reference)
    policy = selection.verify
    if inputs is None and policy is None:
        return None
    samples = samples_to_verify(inputs, exported)
    on_failure = None if policy is None else policy.on_failure
    return Verification(
        exported,
        samples,
        Bounds.of(policy),
        on_failure,
        registry,
        selection.kernels,
        floats,
        {name: precision_of(exported[name]) for name in samples},
        blame,
        selection.quantization is not None,
        inputs is None,
    )


def samples_to_verify(inputs: Any, exported: Mapping[str, ExportedProgram]) -> dict[str, list[Sample]]:
    """Return the calls by method: `inputs`, else the example inputs of the export; raises InputError."""
    return example_samples(exported) if inputs is None else samples_of(inputs, exported)


Results = Mapping[str, Sequence[Sequence[torch.Tensor]]]  # of each call, by method


def torch_results(programs: Mapping[str, ExportedProgram], samples: Mapping[str, Sequence[Sample]]) -> Results:
    """Return the results of programs, run by torch, by method; raises AccuracyError if torch cannot run one."""
    methods = _eager({name: programs[name] for name in samples})
    return {
        name: [methods.run(name, flat_arguments(programs[name], call.args, call.kwargs)) for call in calls]
        for name, calls in samples.items()
    }


def reference_figures(actual: Results, expected: Results) -> dict[str, Accuracy | None]:
    """Return how far results are from others, by method; raises AccuracyError if their numbers or shapes differ."""
    figures = {}
    for name, calls in actual.items():
        differences = Differences()
        for results, references in zip(calls, expected[name], strict=True):
            _require_as_many(name, results, references)
            _require_shapes(name, results, references)
            differences.add(results, references)
        figures[name] = differences.accuracy()
    return figures


def _eager(programs: Mapping[str, ExportedProgram]) -> EagerMethods:
    written = {name: written_buffers(ep) for name, ep in programs.items()}
    return EagerMethods(programs, {name: dict(zip(own, own, strict=True)) for name, own in written.items()})


def _require_as_many(method: str, actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    if len(actual) != len(expected):
        what = f"the program returns {len(actual)} outputs, but its reference {len(expected)}"
        raise AccuracyError(what, where=f"method {method}", remedy="give the model that the program was lowered from")


def _require_shapes(method: str, model: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> None:
    """Check that two models that torch runs give the same shapes."""
    for number, (actual, expected) in enumerate(zip(model, reference, strict=True)):
        if actual.shape != expected.shape:
            what = (
                f"output {number} of the program is {shape_text(actual)}, "
                f"but that of its reference {shape_text(expected)}"
            )
            raise AccuracyError(
                what, where=f"method {method}", remedy="give the model that the program was lowered from"
            )


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
        bounds: the bounds on the error.
        on_failure: the reaction to a missed bound; None: warn, with the default bounds of each precision.
        registry, kernels: the backends and kernels that the program runs on.
        floats: the float references of methods that are other programs. Bounds are on the results against these.
        precisions: the precision that a method computes in, by name; a key of `DEFAULTS`.
        blame: describes the layers to blame if the quantization misses the bounds.
        is_quantized_here: the configuration quantizes the model, so that layers can stay in float.
        is_on_examples: the calls are the example inputs of the export.
    """

    exported: Mapping[str, ExportedProgram]
    samples: Mapping[str, Sequence[Sample]]
    bounds: Bounds
    on_failure: OnFailure | None
    registry: Registry
    kernels: KernelRequest | None
    floats: Mapping[str, ExportedProgram]
    precisions: Mapping[str, str]
    blame: Blame | None = None
    is_quantized_here: bool = False
    is_on_examples: bool = False
    _rounds: int = 0

    def measure(self, program: Program, lowered: Sequence[LoweredProgram], artifacts: Artifacts) -> MeasuredAccuracy:
        """Run a program; all methods run in one context, one after another.

        Args:
            program: the compiled program.
            lowered: its lowered methods.
            artifacts: compiles parts of a partition that gives NaN where torch gives none.

        Raises:
            InputError: the samples do not fit.
            BackendError: a partition cannot be run here.
            AccuracyError: torch cannot run the reference.
        """
        regions = {name: d.region for method in lowered for name, d in method.delegates.items()}
        partitions = {name: WatchedPartition(region) for name, region in regions.items()}
        states = {method.program.name: buffers_of_states(method.program) for method in lowered}
        floats = {name: ep for name, ep in self.floats.items() if name in self.samples}
        eager = EagerMethods({name: self.exported[name] for name in self.samples}, states)
        eager_floats = EagerMethods(floats, states)
        specs = {name: (ep.call_spec.in_spec, ep.call_spec.out_spec) for name, ep in self.exported.items()}
        own = {method.program.name: method for method in lowered}
        methods: dict[str, MethodAccuracy] = {}
        against_lowered: dict[str, MethodAccuracy] = {}
        reference_gap: dict[str, Accuracy | None] = {}
        nan = {name: NanSource() for name in own}
        with LoadedProgram(program, self.registry, self.kernels, fallback="error", trust_code=True) as loaded:
            for name in loaded.methods:
                loaded.method(name).watch(CallRecorder(partitions, nan[name]))
            context = LoadedContext(loaded, specs)
            for name, calls in self.samples.items():
                references = (eager, eager_floats) if name in floats else (eager,)
                differences, between_them = _compare(name, context, references, calls)
                origin = InputOrigin.EXAMPLE if self.is_on_examples else origin_of(calls)
                here = self._nan_source(nan[name], own[name], partitions, artifacts) if differences[0].has_nan else ""
                methods[name] = replace(
                    _method_accuracy(own[name], differences[0], eager, self._reference(name)),
                    nan=nan_text(differences[0], here, self.exported[name], calls),
                    inputs=origin,
                )
                if name in floats:
                    against_lowered[name] = methods[name]
                    methods[name] = replace(
                        _method_accuracy(own[name], differences[1], eager_floats, FLOAT),
                        nan=nan_text(differences[1], here, floats[name], calls),
                        inputs=origin,
                    )
                    if methods[name].figures is not None:
                        reference_gap[name] = between_them.accuracy()
        return MeasuredAccuracy(methods, partitions, against_lowered, reference_gap)

    def _reference(self, name: str) -> str:
        """Return the name of the program that is lowered, as a reference."""
        if is_quantized(self.precisions[name]):
            return QUANTIZED
        return MODEL if name in self.floats else FLOAT

    def _nan_source(
        self,
        source: NanSource,
        method: LoweredProgram,
        partitions: Mapping[str, WatchedPartition],
        artifacts: Artifacts,
    ) -> str:
        """Describe the first node of a method that gives NaN, or what has NaN without a node."""
        call = source.own or source.first
        if not isinstance(call, NanCall):
            return call or "its inputs or states"
        region = partitions[call.partition].region
        return call.describe(self._trial(region, call.inputs, method.delegates[call.partition].backend, artifacts))

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
        missed = {name: e for name in own if (e := self._excess(measured.partitions[name])) > 1}
        methods = [m for m in measured.methods.values() if self.bounds.excess(m.figures) > 1]
        if not missed and not methods:
            return {}
        undefined = [m for m in methods if m.figures is not None and math.isnan(m.figures.sqnr_db)]
        if undefined:
            remedy = "verify on inputs whose results are finite in torch"
            self._fail_or_warn([f"{_undefined_text(m)}, but {self.bounds} is required" for m in undefined], "", remedy)
            return {}
        quantized = [m.method for m in methods if self.bounds.excess(measured.reference_gap.get(m.method)) > 1]
        if quantized or self.on_failure != "move":
            texts = [*(self._text(measured, name) for name in missed), *map(self._method_text, methods)]
            self._fail_or_warn(texts, *self._describe_blame(measured, quantized))
            return {}
        allowed = 1.0
        if not missed:
            missed = self._noisiest(measured, methods[0], lowered)
            allowed = max(missed.values()) / 2
        delegates = {name: d for method in lowered for name, d in method.delegates.items()}
        return {
            name: Eviction(
                self._cause(name, delegates[name], excess / allowed, allowed, measured, artifacts),
                self._text(measured, name),
            )
            for name, excess in missed.items()
        }

    def _excess(self, partition: WatchedPartition) -> float:
        return self.bounds.excess(partition.differences.accuracy())

    def _noisiest(
        self, measured: MeasuredAccuracy, missed: MethodAccuracy, lowered: Sequence[LoweredProgram]
    ) -> dict[str, float]:
        """Return the noisiest partition of a method that misses the bounds although its partitions meet them.

        Raises:
            AccuracyError: no partition has noise, or the limit of rounds is reached.
        """
        own = next(method.delegates for method in lowered if method.program.name == missed.method)
        noise = {name: e for name in own if (e := self._excess(measured.partitions[name])) > 0}
        self._rounds += 1
        if not noise or self._rounds > _ROUNDS:
            left = "although every partition meets the bound" if noise else "and no partition left is inaccurate"
            remedy = "relax the bound, or verify on inputs whose results depend less on rounding"
            raise AccuracyError(f"{self._method_text(missed)}, {left}", where="verify", remedy=remedy)
        name = max(noise, key=noise.__getitem__)
        return {name: noise[name]}

    def _cause(
        self,
        name: str,
        delegate: LoweredDelegate,
        excess: float,
        allowed: float,
        measured: MeasuredAccuracy,
        artifacts: Artifacts,
    ) -> frozenset[str]:
        """Return the nodes of a partition to move, by their names in its region."""
        partition = measured.partitions[name]

        def measure(units: Sequence[Unit]) -> float | None:
            figures = trial.accuracy(units)
            return None if figures is None else self.bounds.excess(figures) / allowed

        trial = self._trial(partition.region, partition.worst, delegate.backend, artifacts)
        units = find_guilty(units_of(partition.region), measure, excess)
        return frozenset(node.name for node in nodes_of(units))

    def _trial(self, region: Region, inputs: Sequence[torch.Tensor], backend: str, artifacts: Artifacts) -> RegionTrial:
        """Return a runner of parts of a partition on its backend."""

        def open_result(result: PreprocessResult) -> Delegate:
            runtime = self.registry.runtime(backend)()
            blob, *data = (memoryview(part) for part in (result.blob, *result.data))
            return open_blob(runtime, blob, data, result.compile_specs, trust_code=True)

        return RegionTrial(region, inputs, partial(artifacts.attempt, backend), open_result)

    def _describe_blame(self, measured: MeasuredAccuracy, methods: Sequence[str]) -> tuple[str, str]:
        """Describe the methods whose quantization is at fault, and return the remedy."""
        if not methods:
            remedy = "set verify.on_failure to move, which runs the inaccurate nodes elsewhere, or relax the bound"
            return "", remedy
        name = methods[0]
        if not is_quantized(self.precisions[name]) or self.blame is None:
            gap = measured.reference_gap[name]
            what = f"the model itself, run by torch, reaches only {gap} against the float reference"
            return f"; {what}", "lower a model that is closer to its reference, or relax the bound"
        figures = ", ".join(f"{measured.reference_gap[name]} in method {name}" for name in methods)
        layers, remedy = self.blame(methods, self.bounds)
        if not self.is_quantized_here:
            remedy = f"quantize it again, and {remedy}"
        elif self.on_failure != "move":
            remedy += "\nor set verify.on_failure to move, which does that until the bound holds"
        return f"; the quantization is at fault, not a backend: in torch it reaches {figures}{layers}", remedy

    def _warn_by_default(self, measured: MeasuredAccuracy, lowered: Sequence[LoweredProgram]) -> None:
        """Warn of methods that miss the default bound of their precision."""
        for method in lowered:
            name = method.program.name
            accuracy = measured.methods.get(name)
            if accuracy is None or accuracy.figures is None:
                continue
            precision = self.precisions[name]
            least = DEFAULTS[precision]
            if accuracy.figures.sqnr_db >= least:
                continue
            if math.isnan(accuracy.figures.sqnr_db):
                warn_user(_undefined_text(accuracy))
                continue
            gap = measured.reference_gap.get(name)
            noise = {n: a for n in method.delegates if (a := measured.partitions[n].differences.accuracy()) is not None}
            worst = min(noise, key=lambda n: noise[n].sqnr_db, default="")
            if gap is not None and gap.sqnr_db < least:
                fault = "the quantization is" if is_quantized(self.precisions[name]) else "the model itself is"
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
        figures = measured.partitions[name].differences.accuracy()
        return f"partition {name} reaches {figures}, but {self.bounds} is required"

    def _method_text(self, method: MethodAccuracy) -> str:
        against = f" against {method.reference}" if method.method in self.floats else ""
        nan = f"; {method.nan}" if method.nan else ""
        return f"method {method.method} reaches {method.figures}{against}, but {self.bounds} is required{nan}"


def _undefined_text(accuracy: MethodAccuracy) -> str:
    """Describe a method of which no result is finite, neither here nor in the reference."""
    what = f"method {accuracy.method} returns no finite numbers to compare with {accuracy.reference}"
    return "; ".join(filter(None, (what, accuracy.why, accuracy.nan)))


def _compare(
    name: str, context: LoadedContext, references: Sequence[EagerMethods], samples: Sequence[Sample]
) -> tuple[list[Differences], Differences]:
    """Run a method and its references on samples.

    Returns:
        the differences of the program from each reference: of results, of written inputs, and of states. Then the
        differences of the results of the first reference from those of the last.
    """
    method = context.loaded.method(name)
    by_reference, between = [Differences() for _ in references], Differences()
    for sample in samples:
        try:
            leaves = method.leaves(sample.args, dict(sample.kwargs))
            own_leaves = copies(leaves)
            args, kwargs = pytree.tree_unflatten(own_leaves, references[0].in_spec(name))
            actual = tensors(context.method(name)(*args, **kwargs))
        except InputError as error:
            raise error.at("verify") from error
        states = context.snapshot()
        results = []
        for eager, differences in zip(references, by_reference, strict=True):
            reference_leaves = copies(leaves)
            expected = eager.run(name, reference_leaves)
            _require_as_many(name, actual, expected)
            results.append(expected)
            _require_shapes(name, results[0], expected)
            differences.add(
                [*actual, *(own_leaves[n] for n in method.written), *(states[s] for s in eager.names(name))],
                [
                    *expected,
                    *(reference_leaves[n] for n in method.written),
                    *(eager.states[s] for s in eager.names(name)),
                ],
            )
        between.add(results[0], results[-1])
    return by_reference, between


def _method_accuracy(
    method: LoweredProgram, differences: Differences, eager: EagerMethods, reference: str
) -> MethodAccuracy:
    """Return the figures of a method against a reference, and what was not compared."""
    name = method.program.name
    if is_random_method(method):
        return MethodAccuracy(name, reference, why="it draws random numbers, so its results are never the same")
    if len(differences.empty) == len(differences.outputs):
        return MethodAccuracy(name, reference, why="it returns no numbers")
    states = set(method.program.states.values()).difference(eager.names(name))
    gaps = [f"result {number} is empty" for number in differences.empty]
    if len(differences.nowhere_finite) < len(differences.outputs):
        gaps += [f"result {number} has no finite number" for number in differences.nowhere_finite]
    gaps += [f"the reference has no state {state}" for state in sorted(states)]
    return MethodAccuracy(name, reference, differences.accuracy(), "; ".join(gaps))
