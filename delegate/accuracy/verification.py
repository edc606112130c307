"""Verification: a program run on inputs, its partitions and results compared with torch, and what misses a bound."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from delegate.accuracy.bounds import Bounds
from delegate.accuracy.figures import Differences
from delegate.accuracy.narrowing import Trial, inaccurate_units
from delegate.accuracy.reference import EagerMethods, is_random, tensors
from delegate.accuracy.samples import Sample, example_samples, samples_of
from delegate.accuracy.watching import WatchedPartition, Watcher
from delegate.backends.aot import PreprocessResult
from delegate.backends.bisection import Unit
from delegate.compiled import LoadedContext
from delegate.errors import AccuracyError, InputError, did_you_mean
from delegate.kernels.libraries import Wanted
from delegate.partitioner.candidates import Artifacts
from delegate.partitioner.cut import LoweredDelegate, LoweredProgram
from delegate.program.model import Program
from delegate.registry import Registry
from delegate.report import MethodAccuracy, Report
from delegate.runtime.backend import Delegate
from delegate.runtime.delegates import open_blob
from delegate.runtime.loaded import LoadedProgram
from delegate.selection import Selection

_ROUNDS = 4  # of halving the noise of partitions that keep the bounds, where the whole method does not

OnFailure = Literal["error", "warn", "move"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of a program has shown.

    Args:
        methods: of whole methods, by name.
        partitions: by name; those that no call has reached too.
        originals: of methods against those that they were made of, by name.
    """

    methods: Mapping[str, MethodAccuracy]
    partitions: Mapping[str, WatchedPartition]
    originals: Mapping[str, MethodAccuracy]

    def stated(self, report: Report) -> Report:
        """A report with the figures."""
        partitions = (
            replace(p, accuracy=self.partitions[p.name].differences.accuracy()) if p.name in self.partitions else p
            for p in report.partitions
        )
        accuracy = (*self.methods.values(), *self.originals.values())
        return replace(report, partitions=tuple(partitions), accuracy=accuracy)


@dataclass(frozen=True, slots=True)
class Moved:
    """What has to leave its backend.

    Args:
        nodes: names of nodes of the partition's region.
        why: for the verdict on each.
    """

    nodes: frozenset[str]
    why: str


def verification(
    given: Any,
    exported: Mapping[str, ExportedProgram],
    selection: Selection,
    registry: Registry,
    originals: Mapping[str, ExportedProgram],
) -> Verification | None:
    """The verification that inputs or the configuration ask for; None where neither does.

    Args:
        given: the inputs, see `samples_of`; None: those of the export, where the configuration has bounds.
        exported: the methods.
        selection: of backends, with the policy.
        registry: where backends and kernels are looked up.
        originals: what methods were made of, where that is another program.

    Raises:
        InputError: the inputs are not such, or there are none; or an original is of no method.
    """
    if unknown := [name for name in originals if name not in exported]:
        raise InputError(
            f"there is no method {unknown[0]!r} for its original", remedy=did_you_mean(unknown[0], exported)
        )
    policy = selection.verify
    if given is None and policy is None:
        return None
    samples = example_samples(exported) if given is None else samples_of(given, exported)
    on_failure = "error" if policy is None else policy.on_failure
    return Verification(exported, samples, Bounds.of(policy), on_failure, registry, selection.kernels, originals)


@dataclass(slots=True)
class Verification:
    """Measures programs, and says which nodes have to leave their backends.

    Args:
        exported: the methods.
        samples: the calls to run, by method, in the order in which methods run.
        bounds: that are to be kept.
        on_failure: what happens where they are not.
        registry, kernels: that the program runs on.
        originals: programs that results are compared with too, e.g. those in float of quantized methods.
    """

    exported: Mapping[str, ExportedProgram]
    samples: Mapping[str, Sequence[Sample]]
    bounds: Bounds
    on_failure: OnFailure
    registry: Registry
    kernels: Wanted | None
    originals: Mapping[str, ExportedProgram]
    _rounds: int = 0

    def measure(self, program: Program, lowered: Sequence[LoweredProgram]) -> Measured:
        """Run a program; all methods run in one context, one after another.

        Args:
            program: emitted.
            lowered: its methods.

        Raises:
            InputError: the samples do not fit.
            BackendError: a partition cannot be run here.
            AccuracyError: torch cannot run the reference.
        """
        regions = {name: d.region for method in lowered for name, d in method.delegates.items()}
        partitions = {name: WatchedPartition(region) for name, region in regions.items()}
        states = {method.program.name: tuple(method.program.states.values()) for method in lowered}
        eager = EagerMethods({name: self.exported[name] for name in self.samples}, states)
        originals = {name: ep for name, ep in self.originals.items() if name in self.samples}
        eager_originals = EagerMethods(originals, states)
        specs = {name: (ep.call_spec.in_spec, ep.call_spec.out_spec) for name, ep in self.exported.items()}
        with LoadedProgram(program, self.registry, self.kernels, fallback="error", trust_code=True) as loaded:
            for name in loaded.methods:
                loaded.method(name).watch(Watcher(partitions))
            context = LoadedContext(loaded, specs)
            own = {method.program.name: method for method in lowered}
            methods = {name: self._method(own[name], context, eager, "eager") for name in self.samples}
            context = LoadedContext(loaded.context(), specs)
            compared = {name: self._method(own[name], context, eager_originals, "its original") for name in originals}
        return Measured(methods, partitions, compared)

    def _method(
        self, method: LoweredProgram, context: LoadedContext, eager: EagerMethods, reference: str
    ) -> MethodAccuracy:
        found, name = Differences(), method.program.name
        for sample in self.samples[name]:
            found.add(*_called(name, context, eager, sample))
        if is_random(method):
            return MethodAccuracy(name, reference, why="it draws random numbers, so its results are never the same")
        if len(found.empty) == len(found.outputs):
            return MethodAccuracy(name, reference, why="it gives no numbers")
        states = set(method.program.states.values()).difference(eager.names(name))
        left = [f"number {number} of what it gives is empty" for number in found.empty]
        left += [f"the reference has no state {state}" for state in sorted(states)]
        return MethodAccuracy(name, reference, found.accuracy(), "; ".join(left))

    def to_move(self, measured: Measured, lowered: Sequence[LoweredProgram], artifacts: Artifacts) -> dict[str, Moved]:
        """What has to leave its backend so that the bounds are kept: partition -> nodes of its region.

        Empty where they are kept, or where the policy is a warning.

        Raises:
            AccuracyError: the bounds are not kept, and the policy says so, or nothing is left to move.
        """
        missed = {name: e for name, p in measured.partitions.items() if (e := self._excess(p)) > 1}
        methods = [m for m in measured.methods.values() if self.bounds.excess(m.figures) > 1]
        if not missed and not methods:
            return {}
        if self.on_failure != "move":
            self._tell([*(self._text(measured, name) for name in missed), *map(self._method_text, methods)])
            return {}
        allowed = 1.0
        if not missed:
            missed = self._noisiest(measured, methods[0], lowered)
            allowed = max(missed.values()) / 2
        delegates = {name: d for method in lowered for name, d in method.delegates.items()}
        return {
            name: Moved(
                self._cause(name, delegates[name], excess / allowed, allowed, measured, artifacts),
                self._text(measured, name),
            )
            for name, excess in missed.items()
        }

    def _excess(self, partition: WatchedPartition) -> float:
        return self.bounds.excess(partition.differences.accuracy())

    def _noisiest(
        self, measured: Measured, missed: MethodAccuracy, lowered: Sequence[LoweredProgram]
    ) -> dict[str, float]:
        """The partition with the most noise of a method that misses the bounds, though every one of it keeps them.

        Raises:
            AccuracyError: none makes any, or that has been tried often enough.
        """
        own = next(method.delegates for method in lowered if method.program.name == missed.method)
        noise = {name: e for name in own if (e := self._excess(measured.partitions[name])) > 0}
        self._rounds += 1
        if not noise or self._rounds > _ROUNDS:
            left = "although every partition keeps it" if noise else "with nothing left on backends that is off at all"
            remedy = "ask for less, or verify on inputs whose results depend less on rounding"
            raise AccuracyError(f"{self._method_text(missed)}, {left}", where="verify", remedy=remedy)
        name = max(noise, key=noise.__getitem__)
        return {name: noise[name]}

    def _cause(
        self,
        name: str,
        delegate: LoweredDelegate,
        excess: float,
        allowed: float,
        measured: Measured,
        artifacts: Artifacts,
    ) -> frozenset[str]:
        """The nodes of a partition that have to go, by their names in its region."""
        partition = measured.partitions[name]

        def opened(result: PreprocessResult) -> Delegate:
            runtime = self.registry.runtime(delegate.backend)()
            blob, *data = (memoryview(part) for part in (result.blob, *result.data))
            return open_blob(runtime, blob, data, result.compile_specs, trust_code=True)

        def measure(units: Sequence[Unit]) -> float | None:
            figures = trial.accuracy(units)
            return None if figures is None else self.bounds.excess(figures) / allowed

        trial = Trial(partition.region, partition.worst, partial(artifacts.attempt, delegate.backend), opened)
        units = inaccurate_units(partition.region, excess, measure)
        return frozenset(node.name for unit in units for node in unit)

    def _tell(self, texts: Sequence[str]) -> None:
        what = "; ".join(texts)
        if self.on_failure == "error":
            remedy = "set verify.on_failure to move, which has the nodes that cause it run elsewhere, or ask for less"
            raise AccuracyError(what, where="verify", remedy=remedy)
        warnings.warn(what, RuntimeWarning, stacklevel=5)

    def _text(self, measured: Measured, name: str) -> str:
        return f"{measured.partitions[name].differences.accuracy()} in partition {name}, where {self.bounds} is asked"

    def _method_text(self, method: MethodAccuracy) -> str:
        return f"{method.figures} in method {method.method}, where {self.bounds} is asked"


def _called(
    name: str, context: LoadedContext, eager: EagerMethods, sample: Sample
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What one call gives, here and in torch: results, then the inputs that it writes to, then its states."""
    method = context.loaded.method(name)
    try:
        given = method.leaves(sample.args, dict(sample.kwargs))
        mine, others = (pytree.tree_map_only(torch.Tensor, torch.clone, given) for _ in range(2))
        args, kwargs = pytree.tree_unflatten(mine, eager.in_spec(name))
        actual = tensors(context.method(name)(*args, **kwargs))
    except InputError as error:
        raise error.at("verify") from error
    expected = eager.run(name, others)
    for found, arguments in ((actual, mine), (expected, others)):
        found.extend(arguments[number] for number in method.written)
    states = context.snapshot()
    for state in eager.names(name):
        actual.append(states[state])
        expected.append(eager.states[state])
    return actual, expected
