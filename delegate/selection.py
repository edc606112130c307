"""Selection of the requested backends: create their AOT parts, check their options, and handle absent ones."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph

from delegate.backend.compiler_process import AotPart
from delegate.backend.isolated import IsolatedBackend, Outcomes, warm_up
from delegate.backend.selected import SelectedBackend
from delegate.cache.aot.artifacts import ArtifactCache
from delegate.cache.runtime.folder import ARTIFACTS, cache_folder, private
from delegate.cache.runtime.store import Store
from delegate.common.user_warnings import warn_user
from delegate.config import (
    AccuracyPolicy,
    BackendChoice,
    Cache,
    Config,
    Fallback,
    PlacementSection,
    Quantization,
    backend_options,
    load_config,
    options_of_alias,
)
from delegate.errors import BackendError, BackendNotFound, BackendUnavailable, ConfigError, DelegateError
from delegate.kernels.libraries import KernelRequest
from delegate.partitioner.partitioner import CapabilityPartitioner, Partitioner
from delegate.partitioner.rules import PartitionRules
from delegate.plugins import INSTANCE, PORTABLE, backend_of
from delegate.processes.limits import UNNAMED_LIMIT
from delegate.registry import Registry

Request = str | Partitioner | Sequence[str | Partitioner] | None
ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | None


@dataclass(frozen=True)
class Selection:
    """The backends to use, in order of preference.

    Args:
        partitioners: one per backend.
        backends: Backend name -> the backend.
        rules: include, exclude, pins and sizes of the configuration.
        on_portable: "allow", "warn" or "error" for nodes that no backend supports.
        notes: Notes for the report, e.g. requested backends that are absent here.
        fallback: the settings of kernel fallbacks of partitions.
        keeps: the backends whose partitions have kernel fallbacks -> True if a partition without kernels is an error.
        kernels: the kernel libraries to run on, in order of preference; None for the default.
        verify: the bounds on the error of results; None if not configured.
        quantization: the settings of quantization before lowering; None for no quantization.
        cache: the settings of the compile cache.
        placement: the settings of the choice among backends that support a node.
        is_named: the user has named the backends, so that their order is one of preference.
    """

    partitioners: tuple[Partitioner, ...]
    backends: Mapping[str, SelectedBackend]
    rules: PartitionRules
    on_portable: str
    notes: tuple[str, ...]
    fallback: Fallback
    keeps: Mapping[str, bool] = field(default_factory=dict)
    kernels: KernelRequest | None = None
    verify: AccuracyPolicy | None = None
    quantization: Quantization | None = None
    cache: Cache = field(default_factory=Cache)
    placement: PlacementSection = field(default_factory=PlacementSection)
    is_named: bool = True

    def warm_up(self, graphs: Iterable[Graph]) -> None:
        """Start the separate process of compilers early, if it may be needed.

        Args:
            graphs: the graphs of all methods.
        """
        warm_up([b.isolated for b in self.backends.values() if b.isolated is not None], graphs)

    @property
    def dropped(self) -> dict[str, DelegateError]:
        """The backends that the user did not name and that were dropped, with their errors."""
        return {name: b.dropped for name, b in self.backends.items() if b.dropped is not None}

    def report_notes(self) -> tuple[str, ...]:
        """Return the notes, also on backends that were dropped since."""
        return (*self.notes, *(f"not used: {fault}" for fault in self.dropped.values()))


def select(
    request: Request,
    config: ConfigSource,
    registry: Registry,
    kernels: KernelRequest | None = None,
    compiled_for: Collection[str] = (),
    cache: bool | None = None,
) -> Selection:
    """Resolve the arguments of `to_backend`.

    Args:
        request, config, registry, kernels: see there.
        compiled_for: backends that are used although their device is absent here, even if they are not named.
        cache: use the cache; None: as configured.

    Raises:
        ConfigError: the configuration or an option is wrong, or backends or kernels are named in both places.
        BackendNotFound, BackendBroken, BackendIncompatible, BackendUnavailable: a requested backend cannot be used. The
            policy can permit the first and the last.
    """
    settings = load_config(config if config is not None else {}, registry=registry)
    for what, one, other in (
        ("backends", request, settings.backends),
        ("kernel libraries", kernels, settings.kernels),
    ):
        if one is not None and other is not None:
            raise ConfigError(
                f"{what} are named twice, in the call and in the configuration", remedy="name them in one place"
            )
    is_named = request is not None or settings.backends is not None
    requested = _partitioners(request, settings, registry, compiled_for)
    partitioners: dict[str, Partitioner] = {}
    backends: dict[str, SelectedBackend] = {}
    notes: list[str] = []
    store = _store(settings.cache, cache)
    for partitioner in requested:
        name = partitioner.backend
        if name in partitioners:
            remedy = f"give one of them another name, e.g. {backend_of(name)}{INSTANCE}second"
            raise ConfigError(f"backend {name!r} is named twice", remedy=remedy)
        try:
            backends[name] = _create(partitioner, registry, is_named, name in compiled_for, store)
        except BackendError as error:
            notes.append(_leave_out(name, error, settings.policy.unavailable, registry, is_named))
            continue
        partitioners[name] = partitioner
        if backend_of(name) != name and not partitioner.options:
            notes.append(f"{name} has no options, so it is {backend_of(name)} by another name")
    if not is_named:
        notes = [*(f"not used: {sentence}" for sentence in registry.left_out()), *notes]
    automatic_plugins = [] if is_named else [name for name in backends if not registry.is_own(name)]
    return Selection(
        partitioners=tuple(partitioners.values()),
        backends=backends,
        rules=settings.rules(tuple(backends)),
        on_portable=settings.policy.portable,
        notes=tuple(notes),
        fallback=settings.fallback,
        keeps=_keeps(settings.fallback, automatic_plugins, backends),
        kernels=settings.kernels if kernels is None else kernels,
        verify=settings.verify,
        quantization=settings.quantization,
        cache=settings.cache,
        placement=settings.measuring(),
        is_named=is_named,
    )


def _keeps(settings: Fallback, automatic: Iterable[str], backends: Iterable[str]) -> dict[str, bool]:
    """Return the backends whose partitions have kernel fallbacks, of all backends; see `emit`.

    By default these are the automatically selected plugins, but the configuration can select all backends, or none.
    """
    if settings.keep is None:
        return dict.fromkeys(automatic, False)
    return dict.fromkeys(backends, True) if settings.keep else {}


def open_artifact_cache(selection: Selection, registry: Registry, enabled: bool | None = None) -> ArtifactCache | None:
    """Return the artifact cache of these backends; None if it is off.

    Args:
        selection: the backends, with the settings of the cache.
        registry: the registry of backends.
        enabled: use the cache; None: as configured.
    """
    store = _store(selection.cache, enabled)
    if store is None:
        return None
    identities = {name: partial(b.identity, registry.state(name)) for name, b in selection.backends.items()}
    return ArtifactCache(store, identities)


def cache_folder_of(settings: Cache, enabled: bool | None = None) -> Path | None:
    """Return the folder of the cache; None if it is off. `enabled` as in `open_artifact_cache`."""
    is_enabled = settings.enabled if enabled is None else enabled
    folder = cache_folder() if settings.folder is None else Path(settings.folder).expanduser()
    return private(folder) if is_enabled else None


def _store(settings: Cache, enabled: bool | None) -> Store | None:
    folder = cache_folder_of(settings, enabled)
    return None if folder is None else Store(folder / ARTIFACTS, settings.max_mb * 2**20)


def _create(
    partitioner: Partitioner, registry: Registry, is_requested: bool, absent_ok: bool, store: Store | None
) -> SelectedBackend:
    """Create the AOT part of a partitioner's backend; raises BackendError."""
    name = partitioner.backend
    if partitioner.isolate == "compile":
        registry.check_part(name, "aot")  # importing it may crash or hang, too
    part = registry.aot(name, absent_ok=absent_ok)
    options = backend_options(BackendChoice(name=name, options=dict(partitioner.options)), registry)
    info = registry.info(name)
    # The text is the one that `backend_options` has accepted.
    aot_part = AotPart(name, info.aot, json.dumps(dict(partitioner.options), default=str))
    is_named = is_requested or not registry.is_plugin(name)  # the project's own backends count as named
    if not is_named:
        aot_part = aot_part._replace(runtime=info.runtime, limit=UNNAMED_LIMIT)
    isolated = None
    if partitioner.isolate == "compile":
        isolated = IsolatedBackend(aot_part, partitioner.time_limit, is_named=is_named)
    elif partitioner.isolate == "auto" and (part.may_crash or registry.is_plugin(name)):
        outcomes = Outcomes(cache(lambda: backend.identity(registry.state(name))), store)
        isolated = IsolatedBackend(aot_part, partitioner.time_limit, is_named=is_named, outcomes=outcomes)
    on_drop = None if is_requested else lambda fault: registry.warn(name, str(fault))
    backend = SelectedBackend(name, part, options, isolated, on_drop)
    return backend


def _partitioners(
    request: Request, settings: Config, registry: Registry, compiled_for: Collection[str]
) -> list[Partitioner]:
    if request is None:
        if settings.backends is None:
            names = dict.fromkeys((*registry.available(), *compiled_for))
            return [_automatic(name, registry) for name in names]
        return [
            CapabilityPartitioner(c.name, c.options, isolate=c.isolate, time_limit=c.time_limit)
            for c in settings.backends
        ]
    requested = list(request) if isinstance(request, Iterable) and not isinstance(request, str) else [request]
    for item in requested:
        if not isinstance(item, str | Partitioner):
            raise ConfigError(
                f"a {type(item).__name__} is not a backend", remedy="give names of backends or Partitioners"
            )
    named = (w if isinstance(w, Partitioner) else CapabilityPartitioner(w) for w in requested)
    return [_of_real_backend(p, registry) for p in named if registry.resolve(p.backend) != PORTABLE]


def _automatic(name: str, registry: Registry) -> Partitioner:
    """Return the partitioner of a backend that the user did not name."""
    limit = UNNAMED_LIMIT if registry.is_plugin(name) else Partitioner.time_limit
    return CapabilityPartitioner(name, time_limit=limit)


def _of_real_backend(partitioner: Partitioner, registry: Registry) -> Partitioner:
    """Return a partitioner whose backend is resolved, if it is an alias or spelled in another case."""
    alias = partitioner.backend
    name = registry.resolve(alias)
    if name == alias:
        return partitioner
    if partitioner.options and name.casefold() != alias.casefold():
        raise options_of_alias(alias, name)
    resolved = copy(partitioner)
    resolved.backend = name
    return resolved


def _leave_out(name: str, error: BackendError, policy: str, registry: Registry, is_named: bool) -> str:
    """Return the note on a backend that cannot be used; raises the error or warns if the policy requires it.

    Args:
        name: the name of the backend.
        error: why it cannot be used.
        policy: "error", "warn" or "skip".
        registry: the registry of backends.
        is_named: the user has named it; if not, it is never an error.
    """
    note = f"not used: {error}"
    if is_named:
        if policy == "error" or not isinstance(error, BackendNotFound | BackendUnavailable):
            raise error
        if policy == "warn":
            warn_user(note)
    elif policy != "skip":
        registry.warn(name, note)
    return note


def kernel_names(kernels: KernelRequest | None) -> list[str] | None:
    """Return the names of the kernel libraries; another process can load only those that have a name."""
    requested = [kernels] if isinstance(kernels, str) else kernels
    return None if requested is None else [k for k in requested if isinstance(k, str)]


def versions_of(backends: Iterable[str], registry: Registry) -> dict[str, str]:
    """Return the versions of torch, and of the backends' libraries."""
    versions = {"torch": str(torch.__version__)}
    for name in backends:
        try:
            availability = registry.state(name).availability
        except DelegateError:
            continue
        reported = {} if availability is None else availability.versions
        versions.update({library: str(version) for library, version in reported.items()})
    return versions
