"""Placement as in a lock, and the lock of a program."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch.export import ExportedProgram

from delegate.accuracy.bounds import Verify
from delegate.cache.runtime.environment import machine
from delegate.config import PlacementSection, Quantization
from delegate.config.source import sentences
from delegate.edge.keys import NotCacheable
from delegate.errors import PartitionError
from delegate.lowering.compiler import Compiler
from delegate.lowering.quantized import quantize_as_configured, quantize_programs
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import AGAIN, Lock, fingerprint_methods, map_sources
from delegate.placement.strategy import MEASURED, PathLike, Placed, Progress, Strategy
from delegate.registry import Registry
from delegate.report import Report
from delegate.selection import Selection, versions_of


@dataclass
class Replay(Strategy):
    """Place every node, and quantize, as in a lockfile, without measuring anything.

    Example::

        program = delegate.to_backend(exported, "xnnpack", placement=delegate.Replay("model.lock"))

    Args:
        locked: path of the lockfile to apply.
        lockfile: path of a lockfile to write, with the versions of this machine.
    """

    can_quantize = True

    locked: PathLike
    lockfile: PathLike | None = None

    @classmethod
    def of(cls, lock: Lock) -> Replay:
        """Return the placement as in a lock."""
        replay = cls(lock.where)
        replay._apply(lock)
        return replay

    def prepare(self, settings: PlacementSection) -> None:
        self._apply(Lock.load(self.locked))

    def _apply(self, lock: Lock) -> None:
        self.lock, self.plan, self.backends = lock, lock.plan, lock.plan.backends

    def require_model(self, exported: Mapping[str, ExportedProgram], selection: Selection) -> None:
        self.lock.require_model(exported)
        self.lock.require_backends(selection.backends)

    def cache_key(self, exported: Mapping[str, ExportedProgram]) -> Hashable:
        if self.lock.quantization or self.lock.configured:
            raise NotCacheable
        return self.lock.to_yaml()

    def quantize(
        self,
        sources: dict[str, ExportedProgram],
        selection: Selection,
        registry: Registry,
        verify: Any = None,
        progress: Progress | None = None,
    ) -> tuple[dict[str, ExportedProgram], Selection]:
        given = selection.quantization
        sections = {name: self._section(values, given) for name, values in self.lock.quantization.items()}
        if self.lock.configured is None:
            exported, selection = quantize_programs(sources, selection, registry, verify, progress)
        else:  # bounds have already kept the noisiest layers in float
            selection = replace(selection, quantization=self._section(self.lock.configured, given))
            exported, selection = quantize_programs(sources, selection, registry, None, progress, bounded=False)
        methods = dict(exported)
        for name, section in sections.items():
            methods |= quantize_as_configured(exported, section, tuple(selection.backends), registry, (name,))
        return methods, selection

    def _section(self, values: Mapping[str, Any], given: Quantization | None) -> Quantization:
        """Return a section of the lock, which may lack the folders of its calibration data.

        That is looked for in this folder, beside the lockfile, and where the configuration of the request has it.

        Args:
            values: the section.
            given: the section of the configuration; None if it has none.
        """
        data = None if given is None else given.calibration
        names = {Path(source).name: source for source in (data.values() if isinstance(data, Mapping) else [data or ""])}

        def find(source: str) -> str:
            beside = os.path.join(os.path.dirname(self.lock.where), source)
            found = next((path for path in (source, beside) if os.path.exists(path)), None)
            return found or names.get(source, source)

        try:
            section = Quantization.model_validate(values)
            return section.model_copy(update={"calibration": map_sources(find, section.calibration)})
        except ValidationError as error:
            what = f"the quantization in the lock is invalid: {sentences(error, Quantization)}"
            raise PartitionError(what, where=self.lock.where, remedy=AGAIN) from error

    def place(self, compiler: Compiler, exported: Mapping[str, ExportedProgram], check: Verify) -> Placed:
        if self.lock.measured:
            compiler.apply(self.lock.plan, MEASURED)
        measured = tuple(self.lock.measured.values())
        return Placed(compiler, exported, measured, self.lock.options, self.lock.quantization)

    def require_applied(self, plans: Sequence[Plan]) -> None:
        self.lock.require_applied(plans)

    def finish(self, report: Report, lock: Lock) -> Report:
        report = super().finish(report, lock)
        return replace(report, notes=(*report.notes, *self.lock.notes(lock)))


def lock_of(sources: Mapping[str, ExportedProgram], placed: Placed, registry: Registry) -> Lock:
    """Return the lock of a compiled program."""
    plan, section = SavedPlan.of(placed.compiler.plans), placed.compiler.selection.quantization
    return Lock(
        fingerprint_methods(sources),
        machine(),
        versions_of(placed.compiler.selection.backends, registry),
        plan,
        {name: options for name, options in placed.options.items() if name in plan.backends},
        placed.quantization,
        None if section is None or section.is_auto else section.model_dump(mode="json"),
        {placement.method: placement for placement in placed.placements},
    )
