"""Lockfiles at the ends of a lowering: the one to keep, and the one that it makes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch.export import ExportedProgram

from delegate.cache.environment import machine
from delegate.config import Quantization
from delegate.destinations import require_file
from delegate.edge.sources import Model, exported_programs
from delegate.errors import ConfigError, PartitionError
from delegate.lowering.compiler import Compiler
from delegate.lowering.quantized import configured, quantized
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import AGAIN, Lock, fingerprints, versions_of
from delegate.placement.placing import Outcome
from delegate.plugins import one_line
from delegate.registry import Registry, default_registry
from delegate.report import Report
from delegate.runtime.kernels import kernels_of
from delegate.selection import ConfigSource, Request, Selection, select


def lock_to_keep(
    locked: str | os.PathLike[str] | None, lock: str | os.PathLike[str] | None, others: Mapping[str, object]
) -> Lock | None:
    """The lock to keep.

    Args:
        locked: path of it, if there is one.
        lock: path of another one that is to be written.
        others: what has a say of where nodes run too, by name.

    Raises:
        PartitionError: it cannot be read, or the other one cannot be written.
        ConfigError: others have a say too.
    """
    if lock is not None:
        require_file(lock, "the lockfile", streams=True)
    if locked is None:
        return None
    for what, other in others.items():
        if other is not None:
            both = f"{what} and a lock both say where nodes run"
            raise ConfigError(both, where="to_backend", remedy="give one of both")
    return Lock.load(locked)


def of_lock(
    exported: dict[str, ExportedProgram],
    keeping: Lock | None,
    locked: str | os.PathLike[str] | None,
    selection: Selection,
) -> dict[str, ExportedProgram]:
    """The programs; raises PartitionError where the lock is of another model, or of backends that are not selected."""
    if keeping is not None:
        keeping.require_model(exported, str(locked))
        keeping.require_backends(selection.backends, str(locked))
    return exported


def as_locked(
    exported: dict[str, ExportedProgram],
    keeping: Lock | None,
    locked: str | os.PathLike[str] | None,
    selection: Selection,
    registry: Registry,
) -> dict[str, ExportedProgram]:
    """The programs, quantized as the candidate was that is locked; raises PartitionError where that makes no sense."""
    if keeping is None or keeping.quantization is None:
        return exported
    try:
        section = Quantization.model_validate(keeping.quantization)
    except ValueError as error:
        what = f"the lock's quantization makes no sense: {one_line(error)}"
        raise PartitionError(what, where=str(locked), remedy=AGAIN) from error
    return configured()(exported, section, tuple(selection.backends), registry)


def require_kept(saved: SavedPlan | None, keeping: Lock | None, locked: object, plans: Sequence[Plan]) -> None:
    """Raise PartitionError where plans are not as a saved one, or a lock, says."""
    if keeping is not None:
        keeping.require_kept(plans, str(locked))
    elif saved is not None:
        saved.require_kept(plans)


def with_lock(report: Report, made: Lock, keeping: Lock | None, lock: str | os.PathLike[str] | None) -> Report:
    """The report, with what is another here than where the lock was made that is kept; the new one is written."""
    if lock is not None:
        made.save(lock)
    return report if keeping is None else replace(report, notes=(*report.notes, *keeping.notes(made)))


def lock_of(
    given: Mapping[str, ExportedProgram], compiler: Compiler, registry: Registry, said: Outcome | Lock | None
) -> Lock:
    """The lock of a program that was compiled, as measuring or another lock had it."""
    versions = versions_of(compiler.selection.backends, registry)
    made = Lock(fingerprints(given), machine(), versions, SavedPlan.of(compiler.plans))
    if said is None:
        return made
    quantization = said.quantization if isinstance(said, Lock) else said.base.quantization
    options = {name: given for name, given in said.options.items() if name in made.plan.backends}
    return replace(made, options=options, quantization=quantization, placements=said.placements)


def check_locked(
    model: Model,
    locked: str | os.PathLike[str],
    backends: Request = None,
    *,
    config: ConfigSource = None,
) -> tuple[str, ...]:
    """Whether a lock can be kept, without compiling; gives notes of what is another here than where it was measured.

    Raises:
        PartitionError: it is of another model, or nodes cannot run where it has them; and as `explain` does.
    """
    registry = default_registry()
    keeping = Lock.load(locked)
    selection = select(backends, config, registry, compiled_for=keeping.plan.backends)
    given = of_lock(exported_programs(model), keeping, locked, selection)
    exported = as_locked(quantized(given, selection, registry)[0], keeping, locked, selection, registry)
    compiler = Compiler(selection, kernels_of(registry, selection.kernels), keeping.plan)
    compiler.take(exported)
    compiler.plan()
    keeping.require_kept(compiler.plans, str(locked))
    return keeping.notes(lock_of(given, compiler, registry, None))
