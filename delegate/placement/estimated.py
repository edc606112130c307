"""Placement by estimated costs; a short race decides between plans whose estimates are close."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.accuracy.reference import copies
from delegate.config import PlacementSection
from delegate.costs.estimates import Estimates
from delegate.costs.machine import BUSY, is_busy, profile_of_this_machine
from delegate.costs.profile import SHIPPED, MachineProfile, read_shipped
from delegate.edge.torch_private import FakeTensor, pytree
from delegate.errors import ConfigError, DelegateError
from delegate.kernels.libraries import KernelRequest
from delegate.lowering.compiler import Compiler
from delegate.partitioner.saved import SavedPlan
from delegate.partitioner.search import MIXED, cheapest, comparable
from delegate.placement.reference_comparator import arrays_of
from delegate.placement.strategy import PathLike, Placed, Progress, Strategy
from delegate.plugins import PORTABLE
from delegate.processes.limits import call_times
from delegate.program.model import Program
from delegate.registry import Registry, default_registry
from delegate.runtime.loaded import LoadedProgram
from delegate.selection import Selection

_NEAR = 5.0  # a plan whose estimate is this many times the least may be the fastest: each is 2.2 times off, typically
_PROMISING = 0.95  # of the best other estimate: a mixed plan shares most of its errors, so it has to promise more
_MOST_RACING = 5  # plans
_LEAST_RACE = 0.2  # seconds that compiled plans run for, although their compilation took the time
RACE_SHARE = 0.5  # of the time that lowering took
EAGER = "torch (eager)"
_TURN = 0.01  # seconds of the calls of one turn
_LEAST = 2  # calls of a turn, besides the first: threads that still spin from the call before slow down later ones only
_PAUSE = 0.02  # seconds before a turn, because threads of another library may still spin
_ROUNDS = 5  # after which the race ends
_TURN_NOISE = 0.2  # logarithm of the ratio between turns of a program, if each has only one turn
_ESTIMATE_ERROR = 0.4  # the same of an estimate over the seconds of a call, typically
_LEAST_SECONDS = 1e-9  # of an estimate
# What took this many times as long, in its first turn or in all of several, gets no other turn.
_FAR_AT_FIRST, _FAR = 3.0, 1.5

_Call = Callable[[], Any]


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


def run_race(
    programs: Mapping[str, Program],
    estimates: Mapping[str, float],
    method: str,
    ep: ExportedProgram,
    registry: Registry,
    kernels: KernelRequest | None,
    budget: float,
) -> dict[str, float]:
    """Return the seconds of calling each program, and of torch's own; the program to take comes first.

    Programs that fail are left out, and so are those without time to run.

    Args:
        programs: Name -> the program that takes part.
        estimates: their estimated seconds, which count as much as the turns of a program differ.
        method: The method that is called.
        ep: the method, with its example inputs.
        registry, kernels: to load the programs with.
        budget: seconds, also for loading.
    """
    end = time.monotonic() + budget
    with ExitStack() as stack:
        calls = _load(stack, programs, method, ep, registry, kernels, end)
        is_stateless = all(reset is None for _, reset in calls.values())  # torch's own calls would change the model
        if len(calls) > 1 and is_stateless and time.monotonic() < end:
            calls[EAGER] = _eager(ep), None
        turns = _take_turns(calls, end)
    ranked = [*_rank(turns, estimates), EAGER]
    return {name: min(turns[name]) for name in ranked if name in turns}


def _load(
    stack: ExitStack,
    programs: Mapping[str, Program],
    method: str,
    ep: ExportedProgram,
    registry: Registry,
    kernels: KernelRequest | None,
    end: float,
) -> dict[str, tuple[_Call, _Call | None]]:
    """Load programs until a time, at least two, and return for each what is called, and what resets its states."""
    calls: dict[str, tuple[_Call, _Call | None]] = {}
    for name, program in programs.items():
        leaves = arrays_of(copies(pytree.tree_leaves(ep.example_inputs)))
        try:
            loaded = stack.enter_context(LoadedProgram(program, registry, kernels, fallback="error", trust_code=True))
            run = partial(loaded.method(method).run, leaves)
            run()
        except DelegateError:
            continue
        calls[name] = (run, loaded.reset if loaded.states else None)
        if time.monotonic() > end and len(calls) > 1:
            break
    return calls


def _take_turns(calls: dict[str, tuple[_Call, _Call | None]], end: float) -> dict[str, list[float]]:
    """Return the seconds of a call in each turn; calls that fail are left out, and removed.

    Args:
        calls: name -> what is called, and what resets its states after each call.
        end: A time by `time.monotonic`, after which no turn begins, except the first of each.
    """
    turns: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        least = min((min(own) for own in turns.values()), default=math.inf)
        for name, (call, reset) in list(calls.items()):
            own = turns.get(name, [])
            most = least * (_FAR if len(own) > 1 else _FAR_AT_FIRST)
            if own and (time.monotonic() > end or min(own) > most):
                continue
            time.sleep(_PAUSE)
            try:
                times = call_times(call, _TURN, _LEAST + 1, reset)
                turns.setdefault(name, []).append(median(times[1:]))
            except Exception:  # what the model asserts may not hold for inputs that it has changed itself
                del calls[name]
    return {name: own for name, own in turns.items() if name in calls}


def _rank(turns: Mapping[str, Sequence[float]], estimates: Mapping[str, float]) -> list[str]:
    """Return the names with estimates, the probably fastest first.

    The logarithms of the measured and of the estimated seconds are averaged, each by the inverse of its variance.
    """
    spreads = [math.log(max(own) / min(own)) / len(own) for own in turns.values() if len(own) > 1]
    noise = median(spreads) if spreads else _TURN_NOISE  # of the least of several turns
    weight = noise**2 / (noise**2 + _ESTIMATE_ERROR**2)

    def logarithm(name: str) -> float:
        return (1 - weight) * math.log(min(turns[name])) + weight * math.log(max(estimates[name], _LEAST_SECONDS))

    return sorted(turns.keys() & estimates.keys(), key=logarithm)


def _eager(ep: ExportedProgram) -> _Call:
    """Return a call of the method by torch, on copies of its example inputs."""
    args, kwargs = pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, ep.example_inputs
    )
    module = ep.module()

    @torch.no_grad()
    def call() -> Any:
        return module(*args, **kwargs)

    return call
