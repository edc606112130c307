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
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from delegate.accuracy.samples import Sample
from delegate.cache.aot.artifacts import ArtifactCache
from delegate.cache.aot.placements import open_choices
from delegate.config import PlacementSection
from delegate.costs.profile import shipped
from delegate.edge.keys import NotCacheable
from delegate.errors import ConfigError
from delegate.lowering.compiler import Compiler
from delegate.lowering.estimated import CostStrategy, kernel_names
from delegate.lowering.schemes import SchemePlanner
from delegate.lowering.strategy import Placed, PlacementInputs
from delegate.placement.program_placement import (
    MEASURED,
    BaseProgram,
    PlacementContext,
    PlacementResult,
    choose_placements,
    unquantized_candidates,
)
from delegate.placement.reference_comparator import samples_to_place
from delegate.placement.runtime.remote import Cluster, RemotePlacement
from delegate.probing.process import UNNAMED_LIMIT
from delegate.registry import default_registry
from delegate.selection import Selection, configured_cache_folder
from delegate.user_warnings import warn_user

_QUANTIZED = 0.3  # the share of the budget after which no other candidate is quantized


class MeasuredStrategy(CostStrategy):
    """Place by measurement, here, on a cluster, or by measurements of another machine.

    Args:
        settings: of the configuration, with the changes of the request.
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
        super().__init__(lockfile, None if remote is None else shipped())
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

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], inputs: PlacementInputs) -> Placed:
        begun, settings = time.monotonic(), self._settings
        compiler.costs = self.costs(compiler.selection)
        samples = samples_to_place(settings, inputs.verify, exported, compiler)
        context = self._context(compiler.selection, compiler.artifact_cache, samples, inputs)
        arguments = (settings, compiler, exported, samples, context.registry, context.progress)
        planners = {name: SchemePlanner(name, *arguments) for name in exported}
        bases = [BaseProgram(compiler, exported, unquantized_candidates(settings, tuple(compiler.selection.backends)))]
        for number, planner in enumerate(planners.values(), 1):
            end = begun + _QUANTIZED * settings.budget * number / len(planners)
            bases += planner.bases(end if self._remote is None else math.inf)
        quantization = compiler.selection.quantization
        with contextlib.ExitStack() as stack:
            context = replace(
                context,
                # The rest of the budget is for measuring.
                begun=max(begun, time.monotonic() - _QUANTIZED * settings.budget),
                not_tried={name: planner.not_tried for name, planner in planners.items()},
                mixes=(lambda name, *chosen: planners[name].mixes(*chosen))
                if quantization is not None and quantization.is_auto
                else None,
                cluster=None if self._cluster is None else stack.enter_context(self._cluster),
            )
            outcome = choose_placements(bases, context)
        if self._remote is not None:
            self._remote.finish()
        if any(placement.busy for placement in outcome.placements):
            self.is_cacheable = False
        return _apply(outcome, compiler, [record for planner in planners.values() for record in planner.records])

    def _context(
        self,
        selection: Selection,
        artifacts: ArtifactCache | None,
        samples: Mapping[str, Sequence[Sample]],
        inputs: PlacementInputs,
    ) -> PlacementContext:
        """Return the settings that all methods share, as far as they are known before quantization."""
        identities = {} if artifacts is None else {name: artifacts.identity(name) for name in selection.backends}
        is_here = self._remote is None and self._cluster is None
        return PlacementContext(
            settings=self._settings,
            samples=samples,
            floats=inputs.references,
            registry=default_registry(),
            kernels=kernel_names(selection.kernels),
            identities={name: text for name, text in identities.items() if text is not None},
            limits={n: UNNAMED_LIMIT for n, b in selection.backends.items() if b.is_unnamed_plugin},
            rules=repr(selection.rules),
            store=open_choices(configured_cache_folder(selection.cache, inputs.cache)) if is_here else None,
            progress=inputs.progress or (lambda text: None),
            begun=time.monotonic(),
            remote=self._remote,
        )


def _apply(outcome: PlacementResult, compiler: Compiler, records: Sequence[warnings.WarningMessage]) -> Placed:
    """Return the chosen programs with the plan to apply, and warn about their quantization.

    Args:
        outcome: the choice.
        compiler: of the original program.
        records: warnings whichever program is chosen.
    """
    chosen = compiler.fork_with({name: base.compiler.methods[name].edge for name, base in outcome.bases.items()})
    notes = dict.fromkeys(note for base in outcome.bases.values() for note in base.notes)
    chosen.selection = replace(chosen.selection, notes=(*chosen.selection.notes, *notes))
    chosen.apply(outcome.plan, MEASURED)
    own = [record for base in outcome.bases.values() for record in base.records]
    for message, category in dict.fromkeys((str(record.message), record.category) for record in (*records, *own)):
        warn_user(message, category)
    programs = {name: base.exported[name] for name, base in outcome.bases.items()}
    sections = {name: base.quantization for name, base in outcome.bases.items() if base.quantization is not None}
    placements = tuple(placement.rounded() for placement in outcome.placements)
    return Placed(chosen, programs, placements, outcome.options, sections)
