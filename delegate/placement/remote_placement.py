"""Plans by what another machine measures: here its bundle is written, and what it found is taken for rounds run here.

It is a bench for the policy that measures here, so that the same numbers lead to the same choice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from delegate.compiled import to_array
from delegate.destinations import require_file
from delegate.edge.node import dtype_of
from delegate.errors import PartitionError, ProgramError
from delegate.placement import bundle
from delegate.placement.accuracy_check import AccuracyResult, Array, check_accuracy, widen_bfloat16
from delegate.placement.plans import ChosenPlan, Progress, Task
from delegate.placement.policy import Placer
from delegate.placement.reference_comparator import ReferenceComparator, arrays_of
from delegate.placement.remote_costs import Costs, MethodCosts, ProgramCosts
from delegate.placement.trials import ProgramRunner, RoundResult, RoundsOver, Trial, TrialFailed
from delegate.program.model import Program

_AGAIN = "write a bundle again, `delegate lower --measure --bundle FILE`, and measure that"
_OTHERS = "its weights, versions or options are others"
_SECOND = "plans of several parts: `--costs FILE --bundle FILE` writes those that promise more, to be measured too"
PathLike = str | os.PathLike[str]


class RemotePlacement:
    """What takes the place of measuring here: costs that were measured elsewhere, and a bundle of what is to be.

    With a bundle alone it has the plans of each candidate, and what tells the costs of their parts; the first plan is
    taken meanwhile. With costs too it has the plans that promise more, beside those that they have to beat.

    Args:
        costs: of each measurement, in order, and where they are from.
        to_bundle: path of the file to write; None for none.
    """

    def __init__(self, costs: Sequence[tuple[Costs, str]], to_bundle: PathLike | None) -> None:
        self._costs, self._path, self._tasks = costs, to_bundle, list[bundle.Task]()

    def place(self, task: Task, comparator: ReferenceComparator, progress: Progress) -> ChosenPlan:
        """The plan that measuring would choose here, had it found these numbers.

        Raises:
            PartitionError: these are costs of other programs, of other inputs, or by another objective.
            DelegateError: no candidate can be compiled.
        """
        inputs = bundle.describe_arguments(arrays_of(comparator.calls[0]))
        known = [_require_same_program(costs, where, task, inputs) for costs, where in self._costs]
        factory = RemoteRunnerFactory(known, collects=self._path is not None)
        mixes = len(known) > 1 or self._path is not None
        comparator_there = RemoteComparator(known, comparator.bound, is_random=comparator.is_random)
        placer = Placer(
            replace(task, mixes=mixes), factory, comparator_there, None, progress, clock=lambda: 0.0, pause=None
        )
        chosen = placer.place()
        if not known:
            placer.survey()
        if factory.entries:
            self._tasks.append(_task(task, comparator, factory.entries))
        notes = [f"{name}: it was measured elsewhere, and is no candidate here" for name in factory.unused()]
        notes += ["more rounds: no more were run elsewhere"] * factory.is_over + [_SECOND] * (not mixes)
        placement = replace(chosen.placement, not_tried=(*chosen.placement.not_tried, *notes))
        if known:
            budget, spent = (sum(getattr(k.costs, what) for k in known) for what in ("budget", "spent"))
            placement = replace(placement, budget=budget, spent=spent, machine=self._costs[0][0].machine)
        return replace(chosen, placement=placement)

    def finish(self) -> None:
        """All methods are placed: write the bundle.

        Raises:
            PartitionError: by the costs there is nothing left to measure.
            ProgramError: it cannot be written.
        """
        if self._path is None:
            return
        if not self._tasks:
            what = "by these costs no other plan promises more than those that were measured"
            raise PartitionError(what, where="bundle", remedy="lower with the costs alone")
        bundle.write(self._tasks, self._path)


def open_remote_placement(
    to_bundle: PathLike | None, costs: PathLike | Sequence[PathLike] | None
) -> RemotePlacement | None:
    """What takes the place of measuring here.

    Raises:
        PartitionError: costs cannot be read.
        ProgramError: the bundle cannot be written where it is wanted.
    """
    if to_bundle is not None:
        require_file(to_bundle, "the bundle", ProgramError)
    paths = [] if costs is None else [costs] if isinstance(costs, str | os.PathLike) else list(costs)
    if to_bundle is None and not paths:
        return None
    measurements = [(Costs.load(path), str(path)) for path in paths]
    for one, where in measurements[1:]:
        if one.machine != measurements[0][0].machine:
            what = f"costs of two machines, {measurements[0][0].machine} and {one.machine}, cannot be compared"
            raise PartitionError(what, where=where, remedy="measure both bundles on one")
    return RemotePlacement(measurements, to_bundle)


class _Measurement(NamedTuple):
    """What one measurement found of a method, and the file it is from."""

    costs: MethodCosts
    where: str


def _require_same_program(costs: Costs, where: str, task: Task, inputs: Sequence[str]) -> _Measurement:
    """Raises PartitionError where they are of something else."""
    known, what = costs.methods.get(task.method), ""
    if known is None:
        what = f"there are none of method {task.method!r}"
    elif known.objective != task.objective:
        what = f"these are by {known.objective}, and {task.objective} is asked for"
    elif list(known.inputs) != list(inputs):
        what = f"method {task.method!r} was called with {_few(known.inputs)}, not {_few(inputs)}"
    if known is None or what:
        raise PartitionError(f"the costs are of another program: {what}", where=where, remedy=_AGAIN)
    return _Measurement(known, where)


def _task(task: Task, comparator: ReferenceComparator, entries: Sequence[bundle.Entry]) -> bundle.Task:
    results = [] if comparator.is_random else comparator.expected(entries[0].program)
    expected = None if comparator.is_random else [[_to_array(t) for t in call] for call in results]
    calls = [arrays_of(call) for call in comparator.calls]
    return bundle.Task(task.method, task.objective, task.budget, comparator.bound, entries, calls, expected)


class RemoteRunnerFactory:
    """A bench whose programs cost what another machine found.

    A program that takes part in two measurements here took part in two there: each time the next costs count that have
    it. One that is in no more costs fails; a bundle may have it.

    Args:
        known: what was found, in order.
        collects: whether what is not known is kept for a bundle.

    Attributes:
        entries: for the bundle.
        is_over: whether more rounds were asked for than were run there.
    """

    def __init__(self, known: Sequence[_Measurement], *, collects: bool) -> None:
        self._known, self._collects = known, collects
        self._started: Counter[str] = Counter()
        self.entries: list[bundle.Entry] = []
        self.is_over = False

    def start(self, trial: Trial) -> ProgramRunner:
        """Raises PartitionError where the costs are of another artifact."""
        remaining = [k for k in self._known if trial.name in k.costs.programs][self._started[trial.name] :]
        self._started[trial.name] += 1
        if remaining:
            costs = remaining[0].costs.programs[trial.name]
            if costs.digest != bundle.digest(trial.program):
                what = f"the costs of {trial.name!r} are of another artifact than is compiled here: {_OTHERS}"
                raise PartitionError(what, where=remaining[0].where, remedy=_AGAIN)
            return _ReplayRunner(self, costs)
        if not self._collects:
            raise TrialFailed("not among the costs that were measured elsewhere")
        threads = {backend: int(given["threads"]) for backend, given in trial.options.items()}
        self.entries.append(bundle.Entry(trial.name, trial.program, threads, trial.is_watched))
        raise TrialFailed("not measured here: it is in the bundle")

    def unused(self) -> list[str]:
        """Whole plans that were measured, and not asked for."""
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
        """They are not kept: the other machine has looked at them."""
        raise TrialFailed("what it gave elsewhere is not known here")

    def close(self) -> None:
        pass


class RemoteComparator:
    """An examiner that goes by what was looked at elsewhere."""

    def __init__(self, known: Sequence[_Measurement], bound: float | None, *, is_random: bool) -> None:
        self._known, self._bound, self.is_random = known, bound, is_random

    def __call__(self, runners: Mapping[str, ProgramRunner], programs: Mapping[str, Program]) -> AccuracyResult:
        sqnr_db_of = {name: sqnr for name in runners if (sqnr := self.sqnr_db(name)) is not None}
        return check_accuracy(
            {name: runners[name] for name in sqnr_db_of}, lambda name, runner: sqnr_db_of[name], self._bound, {}
        )

    def sqnr_db(self, name: str) -> float | None:
        having = (k.costs.programs[name].sqnr_db for k in self._known if name in k.costs.programs)
        return next((sqnr for sqnr in having if sqnr is not None), None)


def _to_array(tensor: torch.Tensor) -> Array:
    """What torch gives, as NumPy's own numbers."""
    return widen_bfloat16(to_array(tensor, "result"), dtype_of(tensor.dtype))


def _few(inputs: Sequence[str]) -> str:
    return ", ".join(inputs) or "nothing"
