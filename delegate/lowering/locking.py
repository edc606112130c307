"""Lockfiles of a lowering: the lock to apply, and the lock to write."""

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
from delegate.placement.lock import AGAIN, Lock, fingerprint_methods, versions_of
from delegate.placement.program_placement import Outcome
from delegate.plugins import one_line
from delegate.registry import Registry, default_registry
from delegate.report import Report
from delegate.runtime.kernels import kernels_of
from delegate.selection import ConfigSource, Request, Selection, select


def lock_to_apply(
    locked: str | os.PathLike[str] | None, lock: str | os.PathLike[str] | None, others: Mapping[str, object]
) -> Lock | None:
    """Return the lock to apply, if any.

    Args:
        locked: path of the lock to apply.
        lock: path of the lock to write.
        others: other arguments that decide where nodes run, by name; None if one is absent.

    Raises:
        PartitionError: `locked` cannot be read, or `lock` cannot be written.
        ConfigError: another argument decides where nodes run too.
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


def require_lock_matches(
    exported: dict[str, ExportedProgram],
    keeping: Lock | None,
    locked: str | os.PathLike[str] | None,
    selection: Selection,
) -> dict[str, ExportedProgram]:
    """Return the programs; raises PartitionError if the lock is of another model or of backends not selected."""
    if keeping is not None:
        keeping.require_model(exported, str(locked))
        keeping.require_backends(selection.backends, str(locked))
    return exported


def quantize_as_locked(
    exported: dict[str, ExportedProgram],
    keeping: Lock | None,
    locked: str | os.PathLike[str] | None,
    selection: Selection,
    registry: Registry,
) -> dict[str, ExportedProgram]:
    """Quantize the programs as the lock requires; raises PartitionError if its quantization is invalid."""
    if keeping is None or keeping.quantization is None:
        return exported
    try:
        section = Quantization.model_validate(keeping.quantization)
    except ValueError as error:
        what = f"the lock's quantization makes no sense: {one_line(error)}"
        raise PartitionError(what, where=str(locked), remedy=AGAIN) from error
    return configured()(exported, section, tuple(selection.backends), registry)


def require_applied(saved: SavedPlan | None, keeping: Lock | None, locked: object, plans: Sequence[Plan]) -> None:
    """Raise PartitionError where plans are not as a saved one, or a lock, says."""
    if keeping is not None:
        keeping.require_applied(plans, str(locked))
    elif saved is not None:
        saved.require_applied(plans)


def with_lock(report: Report, new_lock: Lock, keeping: Lock | None, lock: str | os.PathLike[str] | None) -> Report:
    """Write the new lock, and return the report with the differences between this machine and the applied lock's."""
    if lock is not None:
        new_lock.save(lock)
    return report if keeping is None else replace(report, notes=(*report.notes, *keeping.notes(new_lock)))


def lock_of(
    exported: Mapping[str, ExportedProgram], compiler: Compiler, registry: Registry, source: Outcome | Lock | None
) -> Lock:
    """Return the lock of a compiled program, with the placements of `source`."""
    versions = versions_of(compiler.selection.backends, registry)
    lock = Lock(fingerprint_methods(exported), machine(), versions, SavedPlan.of(compiler.plans))
    if source is None:
        return lock
    quantization = source.quantization if isinstance(source, Lock) else source.base.quantization
    options = {name: exported for name, exported in source.options.items() if name in lock.plan.backends}
    return replace(lock, options=options, quantization=quantization, placements=source.placements)


def check_locked(
    model: Model,
    locked: str | os.PathLike[str],
    backends: Request = None,
    *,
    config: ConfigSource = None,
) -> tuple[str, ...]:
    """Check that a lock can be applied, without compiling, and return notes on differences from its machine.

    Raises:
        PartitionError: the lock is of another model, or nodes cannot run where it places them; and as `explain`.
    """
    registry = default_registry()
    keeping = Lock.load(locked)
    selection = select(backends, config, registry, compiled_for=keeping.plan.backends)
    exported_models = require_lock_matches(exported_programs(model), keeping, locked, selection)
    exported = quantize_as_locked(
        quantized(exported_models, selection, registry)[0], keeping, locked, selection, registry
    )
    compiler = Compiler(selection, kernels_of(registry, selection.kernels), keeping.plan)
    compiler.add_methods(exported)
    compiler.plan()
    keeping.require_applied(compiler.plans, str(locked))
    return keeping.notes(lock_of(exported_models, compiler, registry, None))
