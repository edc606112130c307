"""Placement by measurement: here, on a cluster, or by measurements of another machine."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.cache.aot.placements import open_choices
from delegate.common.user_warnings import warn_user
from delegate.config import PlacementSection
from delegate.costs.profile import read_shipped
from delegate.edge.keys import NotCacheable
from delegate.edge.torch_private import pytree
from delegate.errors import ConfigError
from delegate.lowering.compiler import Compiler
from delegate.placement.estimated import CostStrategy
from delegate.placement.plans import BaseProgram, ChosenPlan, float_candidates
from delegate.placement.program_placement import MEASURED, ProgramPlacer, merge_plans
from delegate.placement.reference_comparator import samples_to_place
from delegate.placement.runtime.remote import Cluster, RemotePlacement
from delegate.placement.schemes import SchemePlanner
from delegate.placement.strategy import Placed
from delegate.registry import default_registry
from delegate.selection import Selection, cache_folder_of

_QUANTIZED = 0.3  # the share of the budget after which no other candidate is quantized


class MeasuredStrategy(CostStrategy):
    """Place by measurement, here, on a cluster, or by measurements of another machine.

    Args:
        settings: The configuration's settings, with the changes of the request.
        remote: the measurements of another machine, if these are requested.
        cluster: the cluster that measures, if it is requested.
    """

    can_quantize = True

    def __init__(
        self,
        settings: PlacementSection,
        lockfile: str | os.PathLike[str] | None,
        remote: RemotePlacement | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        super().__init__(lockfile, None if remote is None else read_shipped())
        self._settings, self._remote, self._cluster = settings, remote, cluster
        if remote is not None or cluster is not None:
            self.is_cacheable = False

    def require_model(self, exported: Mapping[str, ExportedProgram], selection: Selection) -> None:
        if not selection.backends:
            raise ConfigError("placements cannot be measured without a backend", where="placement", remedy="name some")

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        if self._settings.accuracy is not None:
            raise NotCacheable
        leaves = [
            (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else leaf
            for ep in exported.values()
            for leaf in pytree.tree_leaves(ep.example_inputs)
        ]
        return (repr(self._settings), repr(leaves))

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], check: Verify) -> Placed:
        begun, settings, selection = time.monotonic(), self._settings, compiler.selection
        compiler.costs = self.costs(selection)
        progress = self._progress or (lambda text: None)
        samples = samples_to_place(settings, check.inputs, exported, compiler)
        arguments = (settings, compiler, exported, samples, default_registry(), progress)
        planners = {name: SchemePlanner(name, *arguments) for name in exported}
        bases = [BaseProgram(compiler, exported, float_candidates(settings, tuple(selection.backends)))]
        for number, planner in enumerate(planners.values(), 1):
            end = begun + _QUANTIZED * settings.budget * number / len(planners)
            bases += planner.bases(end if self._remote is None else math.inf)
        is_here = self._remote is None and self._cluster is None
        with contextlib.ExitStack() as stack:
            placer = ProgramPlacer(
                bases,
                settings,
                selection,
                artifacts=compiler.artifact_cache,
                samples=samples,
                floats=check.reference,
                not_tried={name: planner.not_tried for name, planner in planners.items()},
                store=open_choices(cache_folder_of(selection.cache, self._cache)) if is_here else None,
                progress=progress,
                # The rest of the budget is for measuring.
                begun=max(begun, time.monotonic() - _QUANTIZED * settings.budget),
                remote=self._remote,
                cluster=None if self._cluster is None else stack.enter_context(self._cluster),
            )
            choices = placer.place()
        if self._remote is not None:
            self._remote.finish()
        if any(chosen.placement.busy for chosen in choices.values()):
            self.is_cacheable = False
        return _apply(choices, compiler, [record for planner in planners.values() for record in planner.records])


def _apply(choices: Mapping[str, ChosenPlan], compiler: Compiler, records: Sequence[warnings.WarningMessage]) -> Placed:
    """Return the chosen programs with the plan to apply, and warn about their quantization.

    Args:
        choices: Method name -> the choice.
        compiler: The compiler that lowered the original program.
        records: warnings whichever program is chosen.
    """
    bases = {name: chosen.candidate.base for name, chosen in choices.items()}
    applied = compiler.fork_with({name: base.compiler.methods[name].edge for name, base in bases.items()})
    notes = dict.fromkeys(note for base in bases.values() for note in base.notes)
    applied.selection = replace(applied.selection, notes=(*applied.selection.notes, *notes))
    applied.apply(merge_plans(choices), MEASURED)
    own = [record for base in bases.values() for record in base.records]
    for message, category in dict.fromkeys((str(record.message), record.category) for record in (*records, *own)):
        warn_user(message, category)
    return Placed(
        applied,
        {name: base.exported[name] for name, base in bases.items()},
        tuple(chosen.placement.rounded() for chosen in choices.values()),
        {name: options for chosen in choices.values() for name, options in chosen.options.items()},
        {name: base.quantization for name, base in bases.items() if base.quantization is not None},
    )
