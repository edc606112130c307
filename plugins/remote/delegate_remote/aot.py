"""Place a method by the measurements of another machine: write its bundle, and use the measured costs.

A runner factory replays the costs for the local policy, so that equal numbers lead to equal choices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from delegate.common.files import require_file
from delegate.compiled import to_array
from delegate.edge.node import dtype_of
from delegate.errors import PartitionError, ProgramError
from delegate.placement.placer import Placer
from delegate.placement.plans import ChosenPlan, RemotePlacement, Task
from delegate.placement.reference_comparator import ReferenceComparator, arrays_of
from delegate.placement.runtime.accuracy_check import Array
from delegate.placement.runtime.trials import ProgramRunner, RoundResult, RoundsOver, Trial, TrialFailed
from delegate.placement.strategy import PathLike, Progress
from delegate.program.model import Program
from delegate_remote.runtime import bundle
from delegate_remote.runtime.accuracy import widen_bfloat16
from delegate_remote.runtime.costs import Costs, MethodCosts, ProgramCosts

_AGAIN = "write a bundle again, `delegate lower --measure --bundle FILE`, and measure that"
_OTHERS = "its weights, versions or options differ"
_SECOND = "plans on several candidates: `--costs FILE --bundle FILE` writes the promising ones for another measurement"


class BundlePlacement(RemotePlacement):
    """Measurements of another machine instead of local ones: its costs, and a bundle of programs to measure.

    A bundle without costs has the plans of the candidates, and the same with timed parts. The first plan is chosen
    until then. With costs it has the plans that promise more, and the ones they have to beat.

    Args:
        costs: The costs of each measurement, in order, with their origin.
        to_bundle: path of the file to write; None for none.
    """

    def __init__(self, costs: Sequence[tuple[Costs, str]], to_bundle: PathLike | None) -> None:
        self._costs, self._path, self._tasks = costs, to_bundle, list[bundle.Task]()

    def place(self, task: Task, comparator: ReferenceComparator, progress: Progress) -> ChosenPlan:
        """Choose the plan that a local measurement with these numbers would choose.

        Raises:
            PartitionError: these are costs of other programs, of other inputs, or by another objective.
            DelegateError: no candidate can be compiled.
        """
        inputs = bundle.describe_arguments(arrays_of(comparator.calls[0]))
        known = [_require_same_program(costs, where, task, inputs) for costs, where in self._costs]
        factory = RemoteRunnerFactory(known, collects=self._path is not None)
        mixes = len(known) > 1 or self._path is not None
        comparator_there = RemoteComparator(known, comparator.bound, is_random=comparator.is_random)
        placer = Placer(replace(task, mixes=mixes), factory, comparator_there, progress, clock=lambda: 0.0, pause=None)
        chosen = placer.place()
        if not known:
            placer.watch_candidates()
        if factory.collected:
            self._tasks.append(_task(task, comparator, factory.collected))
        notes = [f"{name}: it was measured, but is not a candidate here" for name in factory.unused()]
        notes += ["more rounds: no more were run on the other machine"] * factory.is_over + [_SECOND] * (not mixes)
        placement = replace(chosen.placement, not_tried=(*chosen.placement.not_tried, *notes))
        if known:
            budget, spent = (sum(getattr(k.costs, what) for k in known) for what in ("budget", "spent"))
            placement = replace(placement, budget=budget, spent=spent, machine=self._costs[0][0].machine)
        return replace(chosen, placement=placement)

    def finish(self) -> None:
        """Write the bundle after all methods are placed.

        Raises:
            PartitionError: according to the costs there is nothing left to measure.
            ProgramError: it cannot be written.
        """
        if self._path is None:
            return
        if not self._tasks:
            what = "by these costs, no other plan promises to be better than the measured ones"
            raise PartitionError(what, where="bundle", remedy="lower with the costs only")
        bundle.write(self._tasks, self._path)


def open_placement(to_bundle: PathLike | None, costs: Sequence[PathLike]) -> BundlePlacement:
    """Read costs, and check the path of the bundle to write.

    Raises:
        PartitionError: costs cannot be read.
        ProgramError: the bundle cannot be written.
    """
    if to_bundle is not None:
        require_file(to_bundle, "the bundle", ProgramError)
    measurements = [(Costs.load(path), str(path)) for path in costs]
    for one, where in measurements[1:]:
        if one.machine != measurements[0][0].machine:
            what = f"costs of two machines, {measurements[0][0].machine} and {one.machine}, cannot be compared"
            raise PartitionError(what, where=where, remedy="measure both bundles on one machine")
    return BundlePlacement(measurements, to_bundle)


class _Measurement(NamedTuple):
    """The costs of a method in one measurement, and their file."""

    costs: MethodCosts
    where: str


def _require_same_program(costs: Costs, where: str, task: Task, inputs: Sequence[str]) -> _Measurement:
    """Return the costs of a method; raises PartitionError if they are of another program."""
    known, what = costs.methods.get(task.method), ""
    if known is None:
        what = f"there are none of method {task.method!r}"
    elif known.objective != task.objective:
        what = f"they are measured by {known.objective}, but {task.objective} is requested"
    elif list(known.inputs) != list(inputs):
        what = f"method {task.method!r} was called with {_few(known.inputs)}, not {_few(inputs)}"
    if known is None or what:
        raise PartitionError(f"the costs are of another program: {what}", where=where, remedy=_AGAIN)
    return _Measurement(known, where)


def _task(task: Task, comparator: ReferenceComparator, trials: Sequence[Trial]) -> bundle.Task:
    results = [] if comparator.is_random else comparator.expected(trials[0].program)
    expected = None if comparator.is_random else [[_to_array(t) for t in call] for call in results]
    calls = [arrays_of(call) for call in comparator.calls]
    return bundle.Task(task.method, task.objective, task.budget, comparator.bound, trials, calls, expected)


class RemoteRunnerFactory:
    """A factory that replays the costs of another machine.

    If a program is measured for the nth time, its costs are from the nth measurement that has it. A program without
    further costs fails, and may be collected for a bundle.

    Args:
        known: the measurements, in order.
        collects: True if unknown programs are collected for a bundle.

    Attributes:
        collected: what the bundle gets.
        is_over: True if a program needed more rounds than were measured.
    """

    machines = ()  # `BundlePlacement` knows the machine of its costs

    def __init__(self, known: Sequence[_Measurement], *, collects: bool) -> None:
        self._known, self._collects = known, collects
        self._started: Counter[str] = Counter()
        self.collected: list[Trial] = []
        self.is_over = False

    def start(self, trial: Trial) -> ProgramRunner:
        """Return the costs of a program as a runner; raises PartitionError if they are of another artifact."""
        remaining = [k for k in self._known if trial.name in k.costs.programs][self._started[trial.name] :]
        self._started[trial.name] += 1
        if remaining:
            costs = remaining[0].costs.programs[trial.name]
            if costs.digest != bundle.digest(trial.program):
                what = f"the costs of {trial.name!r} are of a different artifact than the one compiled here: {_OTHERS}"
                raise PartitionError(what, where=remaining[0].where, remedy=_AGAIN)
            return _ReplayRunner(self, costs)
        if not self._collects:
            raise TrialFailed("not among the costs of the other machine")
        self.collected.append(trial)
        raise TrialFailed("not measured here: it is in the bundle")

    def unused(self) -> list[str]:
        """Return the measured plans that were not requested."""
        whole = {n for k in self._known for n, p in k.costs.programs.items() if not p.record.steps}
        return sorted(whole - self._started.keys())


class _ReplayRunner:
    def __init__(self, factory: RemoteRunnerFactory, costs: ProgramCosts) -> None:
        self._factory, self._costs, self._rounds = factory, costs, 0

    def ready(self) -> None:
        if not self._costs.record.rounds and self._costs.record.failure:
            raise TrialFailed(self._costs.record.failure)

    def measure_round(self) -> RoundResult:
        self._rounds += 1
        record = self._costs.record
        if self._rounds <= len(record.rounds):
            steps = record.steps[self._rounds - 1] if self._rounds <= len(record.steps) else {}
            return RoundResult(record.rounds[self._rounds - 1], steps)
        if record.failure:
            raise TrialFailed(record.failure)
        self._factory.is_over = True
        raise RoundsOver

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        """Raise TrialFailed: the costs do not have the results, which the other machine has compared."""
        raise TrialFailed("its results on the other machine are not known here")

    def close(self) -> None:
        pass


class RemoteComparator:
    """A comparator that returns the SQNR values of another machine."""

    def __init__(self, known: Sequence[_Measurement], bound: float | None, *, is_random: bool) -> None:
        self._known, self.bound, self.is_random = known, bound, is_random

    def sqnr_db(self, name: str, runner: ProgramRunner, program: Program) -> float | None:
        having = (k.costs.programs[name].sqnr_db for k in self._known if name in k.costs.programs)
        return next((sqnr for sqnr in having if sqnr is not None), None)


def _to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor of torch with a NumPy dtype."""
    return widen_bfloat16(to_array(tensor, "result"), dtype_of(tensor.dtype))


def _few(inputs: Sequence[str]) -> str:
    return ", ".join(inputs) or "nothing"
