"""Plans by what another machine measures: here its bundle is written, and what it found is taken for rounds run here.

Both are benches for the policy that measures here, so that the same numbers lead to the same choice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from delegate.accuracy.reference import tensors
from delegate.compiled import to_array
from delegate.edge.node import dtype_of
from delegate.errors import PartitionError
from delegate.placement import bundle
from delegate.placement.elsewhere import Costs, MethodCosts, ProgramCosts
from delegate.placement.examining import Examination, arrays_of
from delegate.placement.judging import Array, Examined, examined, numbers
from delegate.placement.plans import Placed, Progress, Task
from delegate.placement.policy import Placer
from delegate.placement.trials import RoundsOver, Seat, Trial, TrialFailed, Turn
from delegate.program.model import Program

_AGAIN = "write a bundle again, `delegate lower --measure --bundle FILE`, and measure that"
_WHOLE_ALONE = "plans on several candidates: for another machine, plans of one candidate are compared"


class Elsewhere(Protocol):
    """What takes the place of measuring here."""

    def place(self, task: Task, examine: Examination, progress: Progress) -> Placed:
        """The plan of a method."""

    def finish(self) -> None:
        """All methods are placed."""


class Bundling:
    """Writes the candidates of all methods to a bundle. The first plan is taken meanwhile.

    Args:
        path: of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._tasks = path, list[bundle.Task]()

    def place(self, task: Task, examine: Examination, progress: Progress) -> Placed:
        """The first candidate's plan; raises DelegateError where none can be compiled."""
        bench = _Collecting()
        made = _placed(task, bench, examine, progress)
        expected = None if examine.is_random else [_plain(examine, call) for call in range(len(examine.calls))]
        calls = [arrays_of(call) for call in examine.calls]
        self._tasks.append(
            bundle.Task(task.method, task.objective, task.budget, examine.bound, bench.entries, calls, expected)
        )
        return made

    def finish(self) -> None:
        """Write it; raises ProgramError where that cannot be."""
        bundle.write(self._tasks, self._path)


class Replaying:
    """Takes what another machine has measured.

    Args:
        costs: that it found.
        where: they are from, for messages.
    """

    def __init__(self, costs: Costs, where: str) -> None:
        self._costs, self._where = costs, where

    def place(self, task: Task, examine: Examination, progress: Progress) -> Placed:
        """The plan that measuring would choose here, had it found these numbers.

        Raises:
            PartitionError: these are costs of other programs, of other inputs, or by another objective.
            DelegateError: no candidate can be compiled.
        """
        known = self._of(task, bundle.described(arrays_of(examine.calls[0])))
        bench = _Replayed(known, self._where)
        made = _placed(task, bench, _Judging(known, examine.bound), progress)
        unused = sorted(known.programs.keys() - {c.name for c in task.candidates})
        notes = [f"{name}: it was measured elsewhere, and is no candidate here" for name in unused]
        if bench.is_over:
            notes.append("more rounds: no more were run elsewhere")
        placement = replace(
            made.placement,
            not_tried=(*made.placement.not_tried, *notes),
            budget=known.budget,
            spent=known.spent,
            machine=self._costs.machine,
        )
        return replace(made, placement=placement)

    def finish(self) -> None:
        """Nothing is left to do."""

    def _of(self, task: Task, inputs: Sequence[str]) -> MethodCosts:
        known = self._costs.methods.get(task.method)
        if known is None:
            raise self._other(f"there are none of method {task.method!r}")
        if known.objective != task.objective:
            raise self._other(f"these are by {known.objective}, and {task.objective} is asked for")
        if list(known.inputs) != list(inputs):
            raise self._other(f"method {task.method!r} was called with {_few(known.inputs)}, not {_few(inputs)}")
        return known

    def _other(self, what: str) -> PartitionError:
        return PartitionError(f"the costs are of another program: {what}", where=self._where, remedy=_AGAIN)


class _Collecting:
    """A bench that runs nothing, and has what was to be run."""

    def __init__(self) -> None:
        self.entries: list[bundle.Entry] = []

    def seat(self, trial: Trial) -> Seat:
        threads = {backend: int(given["threads"]) for backend, given in trial.options.items()}
        self.entries.append(bundle.Entry(trial.name, trial.program, threads))
        raise TrialFailed("not measured here: it is in the bundle")


class _Replayed:
    """A bench whose programs cost what another machine found.

    Attributes:
        is_over: whether more rounds were asked for than were run there.
    """

    def __init__(self, known: MethodCosts, where: str) -> None:
        self._known, self._where = known, where
        self.is_over = False

    def seat(self, trial: Trial) -> Seat:
        """Raises PartitionError where the costs are of another artifact."""
        found = self._known.programs.get(trial.name)
        if found is None:
            raise TrialFailed("not among the costs that were measured elsewhere")
        if found.digest != bundle.digest(trial.program):
            what = f"the costs of {trial.name!r} are of another artifact than is compiled here"
            raise PartitionError(what, where=self._where, remedy=_AGAIN)
        return _ReplayedSeat(self, found)


class _ReplayedSeat:
    def __init__(self, bench: _Replayed, found: ProgramCosts) -> None:
        self._bench, self._found, self._turns = bench, found, 0

    def ready(self) -> None:
        if not self._found.record.rounds and self._found.record.failure:
            raise TrialFailed(self._found.record.failure)

    def turn(self) -> Turn:
        self._turns += 1
        record = self._found.record
        if self._turns <= len(record.rounds):
            return Turn(record.rounds[self._turns - 1])
        if record.failure:
            raise TrialFailed(record.failure)
        self._bench.is_over = True
        raise RoundsOver

    def outputs(self, leaves: Sequence[Any]) -> list[Any]:
        """They are not kept: the other machine has looked at them."""
        raise TrialFailed("what it gave elsewhere is not known here")

    def close(self) -> None:
        pass


class _Judging:
    """An examiner that goes by what was looked at elsewhere."""

    def __init__(self, known: MethodCosts, bound: float | None) -> None:
        self._known, self._bound = known, bound

    def __call__(self, seats: Mapping[str, Seat], programs: Mapping[str, Program]) -> Examined:
        near = {name: sqnr for name in seats if (sqnr := self.sqnr_db(name)) is not None}
        return examined({name: seats[name] for name in near}, lambda name, seat: near[name], self._bound, {})

    def sqnr_db(self, name: str) -> float | None:
        found = self._known.programs.get(name)
        return None if found is None else found.sqnr_db


def elsewhere_of(
    to_bundle: str | os.PathLike[str] | None, costs: str | os.PathLike[str] | None
) -> Bundling | Replaying | None:
    """What takes the place of measuring here; raises PartitionError where costs cannot be read."""
    if to_bundle is not None:
        return Bundling(to_bundle)
    return None if costs is None else Replaying(Costs.load(costs), str(costs))


def _placed(task: Task, bench: Any, examine: Any, progress: Progress) -> Placed:
    """By the policy that measures here. Its clock stands still: nothing is measured now."""
    made = Placer(replace(task, mixes=False), bench, examine, None, progress, clock=lambda: 0.0).place()
    notes = (*made.placement.not_tried, *((_WHOLE_ALONE,) if len(task.candidates) > 1 else ()))
    return replace(made, placement=replace(made.placement, not_tried=notes))


def _plain(examine: Examination, call: int) -> list[Array]:
    """What torch gives for a call, as NumPy's own numbers."""
    given = tensors(examine.expected[call])
    return [numbers(to_array(t, "result"), dtype_of(t.dtype)) for t in given]


def _few(inputs: Sequence[str]) -> str:
    return ", ".join(inputs) or "nothing"
