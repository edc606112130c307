"""Placement by estimated costs; a short race decides between plans whose estimates are close."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.config import PlacementSection
from delegate.costs.estimates import Estimates
from delegate.costs.machine import BUSY, is_busy, profile_of_this_machine
from delegate.costs.profile import SHIPPED, MachineProfile, read_shipped
from delegate.edge.torch_private import FakeTensor, pytree
from delegate.errors import ConfigError, DelegateError
from delegate.lowering.compiler import Compiler
from delegate.partitioner.saved import SavedPlan
from delegate.partitioner.search import MIXED, cheapest, comparable
from delegate.placement.race import race as run_race
from delegate.placement.strategy import PathLike, Placed, Progress, Strategy
from delegate.plugins import PORTABLE
from delegate.program.model import Program
from delegate.registry import default_registry
from delegate.selection import Selection

_NEAR = 5.0  # a plan whose estimate is this many times the least may be the fastest: each is 2.2 times off, typically
_PROMISING = 0.95  # of the best other estimate: a mixed plan shares most of its errors, so it has to promise more
_MOST_RACING = 5  # plans
_LEAST_RACE = 0.2  # seconds that compiled plans run for, although their compilation took the time
RACE_SHARE = 0.5  # of the time that lowering took


class CostStrategy(Strategy):
    """Place by costs, which start as the estimates of a profile."""

    _profile: MachineProfile | None = None  # None: this machine's own, which `calibrate` measures
    _cache: bool | None = None
    _progress: Progress | None = None

    def calibrate(self, selection: Selection, cache: bool | None = None, progress: Progress | None = None) -> None:
        self._cache, self._progress = cache, progress
        if self._profile is None and selection.backends:
            self._profile, self.estimate_notes = profile_of_this_machine(selection, cache, progress)

    def estimates(self, selection: Selection) -> Estimates:
        places = {*selection.backends} if selection.on_portable == "error" else {*selection.backends, PORTABLE}
        return Estimates(self._profile or read_shipped(), places)


@dataclass
class Estimated(CostStrategy):
    """Take the plan with the least estimated time, by the profile of a machine. The default if no backend is named.

    Plans with estimates that are close run in turns on the example inputs of the export, and the fastest is taken.

    Example::

        placement = delegate.Estimated(race=0)
        program = delegate.to_backend(exported, placement=placement)

    Args:
        race: most seconds for running such plans, which also take at most half the time of lowering. 0: none run, so
            that equal models have equal plans.
        machine: path of another machine's profile, from `delegate calibrate`. None: the profile of this machine.
        lockfile: path of a lockfile to write, with the backend of each node.
    """

    race: float = 2.0
    machine: PathLike | None = None
    lockfile: PathLike | None = None

    def prepare(self, settings: PlacementSection) -> None:
        if isinstance(self.race, bool) or not isinstance(self.race, int | float) or not 0 <= self.race < math.inf:
            what = f"the race of Estimated should be a number of seconds of 0 or more, not {self.race!r}"
            raise ConfigError(what, where="placement", remedy="give e.g. 2.0, or 0 for none")
        self._profile = None if self.machine is None else MachineProfile.load(self.machine)

    def calibrate(self, selection: Selection, cache: bool | None = None, progress: Progress | None = None) -> None:
        super().calibrate(selection, cache, progress)
        if self.machine is not None and self._profile is not None:
            places = (*selection.backends, PORTABLE)
            lacking = [name for name in places if self._profile.rates(name).origin == SHIPPED]
            rest = f"; it has no rates of {', '.join(lacking)}, which are those of a common machine" if lacking else ""
            file = os.path.basename(self.machine)
            self.estimate_notes = (f"estimated by the profile {file}, of {self._profile.machine}{rest}",)
        self._begun = time.monotonic()

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        file = None if self.machine is None else os.path.basename(self.machine)  # the report names it
        return ("estimated", self.race, file, None if self._profile is None else self._profile.to_json())

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], check: Verify) -> Placed:
        compiler.costs = self.estimates(compiler.selection)
        compiler.plan()
        notes: list[str] = []
        for plan in compiler.plans:
            name, seconds = plan.program.name, plan.total_seconds()
            ranked = cheapest(seconds)
            near = [way for way in ranked if _may_win(way, seconds)][:_MOST_RACING]
            if len(near) > 1 and self.race > 0 and _has_inputs(exported[name]):
                notes += self._decide(compiler, near, seconds, exported[name], name)
        compiler.selection = replace(
            compiler.selection, notes=(*compiler.selection.notes, *self.estimate_notes, *notes)
        )
        return Placed(compiler, exported)

    def _decide(
        self, compiler: Compiler, near: Sequence[str], seconds: Mapping[str, float], ep: ExportedProgram, method: str
    ) -> list[str]:
        """Compile near ways, let the compiler take the fastest one, and return notes on their race.

        `seconds` has the estimates of all ways.
        """
        forks, late, left = self._compile_near(compiler, method, near)
        times: dict[str, float] = {}
        if len(forks) > 1:
            programs = {way: program for way, (_, program) in forks.items()}
            times = run_race(
                programs, comparable(seconds), method, ep, default_registry(), compiler.selection.kernels, left
            )
        chosen = next((way for way in (*times, *forks) if way in forks), None)
        if chosen is not None:
            compiler.adopt(method, chosen, forks[chosen][0])
        if len(times.keys() & forks.keys()) < 2:
            return []
        texts = ", ".join(f"{way} {taken * 1e3:.3g} ms" for way, taken in times.items())
        late += [way for way in forks if way not in times]
        rest = f"; without a turn: {', '.join(late)}" if late else ""
        if chosen != min(forks.keys() & times.keys(), key=times.__getitem__):
            rest += "; the turns differ, so the estimates count too"
        if is_busy():
            self.is_cacheable = False
            rest += f"; {BUSY}, so the choice is not stored"
        return [f"{method}: the estimates are close, so the plans ran in turns, and {chosen} is taken: {texts}{rest}"]

    def _compile_near(
        self, compiler: Compiler, method: str, near: Sequence[str]
    ) -> tuple[dict[str, tuple[Compiler, Program]], list[str], float]:
        """Compile the plans of near ways until the time of the race is spent.

        Returns:
            way -> the compiler that has its plan, and the program, for each plan once; the ways without time; and the
            seconds that are left.
        """
        forks: dict[str, tuple[Compiler, Program]] = {}
        late: list[str] = []
        seen: set[frozenset[tuple[tuple[str, str], str]]] = set()
        end = budget = math.inf
        for way in _in_order(near, self.estimates(compiler.selection)):
            if time.monotonic() > end and way != PORTABLE:  # kernels alone need no compiler
                late.append(way)
                continue
            fork = compiler.fork_for_way(method, way)
            with contextlib.suppress(DelegateError):
                program, _ = fork.compile()
                places = frozenset(SavedPlan.of(fork.plans).places().items())
                if places not in seen:
                    forks[way if places else PORTABLE] = fork, program
                    seen.add(places)
            if end == math.inf and forks:
                budget = min(self.race, RACE_SHARE * (time.monotonic() - self._begun))
                end = time.monotonic() + budget
        return forks, late, max(end - time.monotonic(), min(_LEAST_RACE, budget))


def _in_order(near: Sequence[str], costs: Estimates) -> list[str]:
    """Return the ways with the least estimate first, then those that take less time to compile, and kernels last."""
    first, *others = near
    return [first, *sorted(others, key=lambda way: (way == PORTABLE, costs.profile.rates(way).compile))]


def _may_win(way: str, seconds: Mapping[str, float]) -> bool:
    """Return true if the estimate of a way is so close to the least one that it may be the fastest."""
    least = min(own for other, own in seconds.items() if other != MIXED)
    return seconds[way] < _PROMISING * least if way == MIXED else seconds[way] <= _NEAR * min(seconds.values())


def _has_inputs(ep: ExportedProgram) -> bool:
    leaves = pytree.tree_leaves(ep.example_inputs)
    return ep.example_inputs is not None and not any(isinstance(leaf, FakeTensor) for leaf in leaves)
