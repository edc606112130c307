"""Placement by estimated costs; a short race decides between plans whose estimates are close."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch.utils._pytree as pytree
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram

from delegate.costs.estimates import Estimates
from delegate.costs.profile import Profile, shipped
from delegate.errors import DelegateError
from delegate.kernels.libraries import KernelRequest
from delegate.lowering.compiler import Compiler
from delegate.lowering.machine import profile_of_this_machine
from delegate.lowering.race import race
from delegate.lowering.strategy import Placed, PlacementInputs, Strategy
from delegate.partitioner.saved import SavedPlan
from delegate.partitioner.search import cheapest
from delegate.placement.plans import Progress
from delegate.placement.policy import PathLike
from delegate.plugins import PORTABLE
from delegate.program.model import Program
from delegate.registry import default_registry
from delegate.selection import Selection

_NEAR = 5.0  # a plan whose estimate is this many times the least may be the fastest: each is 2.2 times off, typically
_MOST_RACING = 5  # plans
_LEAST_RACE = 0.1  # seconds that compiled plans run for, although their compilation took the time
RACE_SHARE = 0.5  # of the time that lowering took


class CostStrategy(Strategy):
    """Place by costs, which start as the estimates of a profile.

    Args:
        lockfile: path of a lockfile to write.
        profile: of another machine; None: this machine's own, which `calibrate` measures.
    """

    def __init__(self, lockfile: PathLike | None, profile: Profile | None = None) -> None:
        super().__init__(lockfile)
        self._profile, self._notes = profile, tuple[str, ...]()

    def calibrate(self, selection: Selection, cache: bool | None = None, progress: Progress | None = None) -> None:
        if self._profile is None and selection.backends:
            kernels, tell = kernel_names(selection.kernels), progress or (lambda text: None)
            self._profile, self._notes = profile_of_this_machine(
                selection.backends, kernels, selection.cache, cache, tell
            )

    def costs(self, selection: Selection) -> Estimates:
        places = {*selection.backends} if selection.on_portable == "error" else {*selection.backends, PORTABLE}
        return Estimates(self._profile or shipped(), places)


class EstimatedStrategy(CostStrategy):
    """Place by estimated costs; a short race decides between plans whose estimates are close.

    Args:
        race: most seconds of the race; 0 for none.
        machine: path of the profile of a machine; None: this machine's own.
        lockfile: path of a lockfile to write.
    """

    def __init__(self, race: float, machine: PathLike | None, lockfile: PathLike | None) -> None:
        super().__init__(lockfile, None if machine is None else Profile.load(machine))
        self._race, self._begun = race, time.monotonic()

    def calibrate(self, selection: Selection, cache: bool | None = None, progress: Progress | None = None) -> None:
        super().calibrate(selection, cache, progress)
        self._begun = time.monotonic()

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        return ("estimated", self._race, None if self._profile is None else self._profile.to_json())

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], inputs: PlacementInputs) -> Placed:
        compiler.costs = self.costs(compiler.selection)
        compiler.plan()
        notes: list[str] = []
        for plan in compiler.plans:
            name, seconds = plan.program.name, plan.total_seconds()
            ranked = cheapest(seconds)
            near = [way for way in ranked if seconds[way] <= _NEAR * seconds[ranked[0]]][:_MOST_RACING]
            if len(near) > 1 and self._race > 0 and _has_inputs(exported[name]):
                raced = self._run(compiler, name, near, exported[name])
                times = ", ".join(f"{way} {taken * 1e3:.3g} ms" for way, taken in raced.items())
                notes += [f"{name}: the estimates are close, so the plans ran in turns: {times}"] if raced else []
        compiler.selection = replace(compiler.selection, notes=(*compiler.selection.notes, *self._notes, *notes))
        return Placed(compiler, exported)

    def _run(self, compiler: Compiler, method: str, near: Sequence[str], ep: ExportedProgram) -> dict[str, float]:
        """Compile near ways, and let the compiler take the fastest one.

        Returns:
            The measured seconds of the ways and of torch itself, the fastest way first. Empty if two ways did not run.
        """
        forks: dict[str, Compiler] = {}
        programs: dict[str, Program] = {}
        seen: set[frozenset[tuple[tuple[str, str], str]]] = set()
        end = budget = math.inf
        for way in sorted(near, key=lambda way: way == PORTABLE):  # kernels alone need no compiler, so they come last
            if time.monotonic() > end and way != PORTABLE:
                continue
            fork = compiler.fork_for_way(method, way)
            with contextlib.suppress(DelegateError):
                program, _ = fork.compile()
                places = frozenset(SavedPlan.of(fork.plans).places().items())
                if places not in seen:
                    forks[way], programs[way] = fork, program
                    seen.add(places)
            if end == math.inf and programs:
                budget = min(self._race, RACE_SHARE * (time.monotonic() - self._begun))
                end = time.monotonic() + budget
        times: dict[str, float] = {}
        if len(programs) > 1:
            left = max(end - time.monotonic(), min(_LEAST_RACE, budget))
            times = race(programs, method, ep, default_registry(), compiler.selection.kernels, left)
        chosen = next((way for way in (*times, *forks) if way in forks), None)
        if chosen is not None:
            compiler.adopt(method, chosen, forks[chosen])
        return times if len(times.keys() & programs.keys()) > 1 else {}


def _has_inputs(ep: ExportedProgram) -> bool:
    leaves = pytree.tree_leaves(ep.example_inputs)
    return ep.example_inputs is not None and not any(isinstance(leaf, FakeTensor) for leaf in leaves)


def kernel_names(kernels: KernelRequest | None) -> list[str] | None:
    """Return the names of the kernel libraries; another process can load only those that have a name."""
    requested = [kernels] if isinstance(kernels, str) else kernels
    return None if requested is None else [k for k in requested if isinstance(k, str)]
