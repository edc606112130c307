"""Which backends a request means: their AOT halves made, their options checked, absent ones handled by policy."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from torch.fx import Graph

from delegate.backends.checked import CheckedBackend
from delegate.backends.guarded import GuardedBackend, Outcomes, warm_up
from delegate.backends.isolated import IsolatedBackend
from delegate.backends.unasked import UnaskedBackend
from delegate.cache.folder import ARTIFACTS, cache_folder, private
from delegate.cache.store import Store
from delegate.config import (
    BackendChoice,
    Cache,
    Config,
    Fallback,
    Placing,
    Quantization,
    Verify,
    backend_options,
    load_config,
    options_of_alias,
)
from delegate.errors import BackendError, BackendNotFound, BackendUnavailable, ConfigError
from delegate.kernels.libraries import Wanted
from delegate.partitioner.capability import Capability
from delegate.partitioner.kept import KeptArtifacts
from delegate.partitioner.partitioner import CapabilityPartitioner, Partitioner
from delegate.partitioner.rules import PartitionRules
from delegate.plugins import INSTANCE, PORTABLE, backend_of
from delegate.registry import Registry

Request = str | Partitioner | Sequence[str | Partitioner] | None
Half = CheckedBackend | GuardedBackend | IsolatedBackend | UnaskedBackend
ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | None


@dataclass(frozen=True)
class Selection:
    """The backends to use, in order of preference.

    Args:
        partitioners: one per backend.
        backends: the AOT halves by name.
        rules: include, exclude, pins and sizes of the configuration.
        on_portable: "allow", "warn" or "error" for nodes that no backend took.
        notes: for the report, e.g. backends that were asked for and are not here.
        fallback: whether partitions keep their kernels beside their blobs, and what is said when these are used.
        kernels: the kernel libraries to run on, in order of preference; None for the default.
        verify: how far off results may be; None where the configuration does not say.
        quantization: how the model is quantized first; None where it is taken as it is.
        cache: where compiled partitions are kept.
        placement: which of the backends that take a node runs it.
    """

    partitioners: tuple[Partitioner, ...]
    backends: Mapping[str, Half]
    rules: PartitionRules
    on_portable: str
    notes: tuple[str, ...]
    fallback: Fallback
    kernels: Wanted | None = None
    verify: Verify | None = None
    quantization: Quantization | None = None
    cache: Cache = field(default_factory=Cache)
    placement: Placing = field(default_factory=Placing)

    def warm_up(self, graphs: Iterable[Graph]) -> None:
        """Have the separate process of compilers start while this process has other work, if it may be needed.

        Args:
            graphs: of all methods.
        """
        backends = [b.backend if isinstance(b, UnaskedBackend) else b for b in self.backends.values()]
        warm_up([b for b in backends if isinstance(b, GuardedBackend)], graphs)

    @cached_property
    def capabilities(self) -> Mapping[str, Capability]:
        """What each of the backends can do."""
        return {
            name: Capability(b.check, b.preserve_ops, b.claims, b.most_constants, getattr(b, "on_fault", None))
            for name, b in self.backends.items()
        }

    @cached_property
    def keeps(self) -> Mapping[str, bool]:
        """The backends whose partitions are kept in kernels, see `emit`: all where the configuration says so, and where
        it says nothing, plugins that nobody asked for."""
        if self.fallback.keep is not None:
            return dict.fromkeys(self.backends, True) if self.fallback.keep else {}
        unasked = (name for name, b in self.backends.items() if isinstance(b, UnaskedBackend) and b.foreign)
        return dict.fromkeys(unasked, False)


def select(
    request: Request,
    config: ConfigSource,
    registry: Registry,
    kernels: Wanted | None = None,
    compiled_for: Collection[str] = (),
    cache: bool | None = None,
) -> Selection:
    """Resolve the arguments of `to_backend`.

    Args:
        request, config, registry, kernels: see there.
        compiled_for: backends that are used though their device is absent here, also where none is named.
        cache: whether to use the cache; None: as the configuration has it.

    Raises:
        ConfigError: the configuration or an option is wrong, or backends or kernels are named in both places.
        BackendNotFound, BackendBroken, BackendIncompatible, BackendUnavailable: a backend that was asked for cannot be
            used (the first and the last unless the policy lets that pass).
    """
    settings = load_config(config if config is not None else {}, registry=registry)
    if request is not None and settings.backends is not None:
        raise ConfigError(
            "backends are named twice, in the call and in the configuration", remedy="name them in one place"
        )
    if kernels is not None and settings.kernels is not None:
        raise ConfigError(
            "kernel libraries are named twice, in the call and in the configuration", remedy="name them in one place"
        )
    partitioners, notes = [], []
    store = _store(settings.cache, cache)
    backends: dict[str, Half] = {}
    asked = request is not None or settings.backends is not None
    for partitioner in _partitioners(request, settings, registry, compiled_for):
        name = partitioner.backend
        if name in backends:
            raise ConfigError(
                f"backend {name!r} is named twice",
                remedy=f"give one a name of its own, e.g. {backend_of(name)}{INSTANCE}second",
            )
        try:
            backends[name] = _made(partitioner, registry, asked, name in compiled_for, store)
        except BackendError as error:
            if not asked:
                if settings.policy.unavailable != "skip":
                    registry.warn(name, f"not used: {error}")
                notes.append(f"not used: {error}")
            elif isinstance(error, BackendNotFound | BackendUnavailable):
                notes.append(_absent(error, settings.policy.unavailable))
            else:
                raise
            continue
        partitioners.append(partitioner)
    return Selection(
        tuple(partitioners),
        backends,
        settings.rules(tuple(backends)),
        settings.policy.portable,
        tuple(notes),
        settings.fallback,
        settings.kernels if kernels is None else kernels,
        settings.verify,
        settings.quantization,
        settings.cache,
        settings.placement,
    )


def kept_artifacts(selection: Selection, registry: Registry, wanted: bool | None = None) -> KeptArtifacts | None:
    """What earlier lowerings made for these backends; None where nothing is kept.

    Args:
        selection: with the settings of the cache.
        registry: that knows the states of the backends.
        wanted: whether to use it, in place of what the configuration says.
    """
    store = _store(selection.cache, wanted)
    if store is None:
        return None
    identities = {name: partial(b.identity, registry.state(name)) for name, b in selection.backends.items()}
    return KeptArtifacts(store, identities)


def kept_folder(settings: Cache, wanted: bool | None = None) -> Path | None:
    """Return the folder of the cache; None if nothing is kept. `wanted` as in `kept_artifacts`."""
    enabled = settings.enabled if wanted is None else wanted
    folder = cache_folder() if settings.folder is None else Path(settings.folder).expanduser()
    return private(folder) if enabled else None


def _store(settings: Cache, wanted: bool | None) -> Store | None:
    folder = kept_folder(settings, wanted)
    return None if folder is None else Store(folder / ARTIFACTS, settings.max_mb * 2**20)


def _made(partitioner: Partitioner, registry: Registry, asked: bool, absent_ok: bool, store: Store | None) -> Half:
    """The AOT half that a partitioner chooses nodes for; raises BackendError."""
    name = partitioner.backend
    if partitioner.isolate == "compile":
        registry.half(name, "aot")  # it may crash or hang when it is imported, too
    half = registry.aot(name, absent_ok=absent_ok)
    options = backend_options(BackendChoice(name=name, options=dict(partitioner.options)), registry)
    # The text is the one that `backend_options` has accepted.
    text = json.dumps(dict(partitioner.options), default=str)
    path = registry.info(name).aot
    isolate = partial(IsolatedBackend, name, half, path, text, partitioner.time_limit)
    if partitioner.isolate == "compile":
        return isolate()
    checked = CheckedBackend(name, half, options)
    made: CheckedBackend | GuardedBackend = checked
    if partitioner.isolate == "auto" and registry.is_plugin(name):
        outcomes = Outcomes(cache(partial(checked.identity, registry.state(name))), store)
        made = GuardedBackend(checked, path, isolate, outcomes, partitioner.time_limit)
    if asked:
        return made
    return UnaskedBackend(made, lambda fault: registry.warn(name, str(fault)), foreign=not registry.is_own(name))


def _partitioners(
    request: Request, settings: Config, registry: Registry, compiled_for: Collection[str]
) -> list[Partitioner]:
    if request is None:
        if settings.backends is None:
            return [CapabilityPartitioner(n) for n in dict.fromkeys((*registry.available(), *compiled_for))]
        return [
            CapabilityPartitioner(c.name, c.options, isolate=c.isolate, time_limit=c.time_limit)
            for c in settings.backends
        ]
    wanted = list(request) if isinstance(request, Iterable) and not isinstance(request, str) else [request]
    for item in wanted:
        if not isinstance(item, str | Partitioner):
            raise ConfigError(f"a {type(item).__name__} is no backend", remedy="give names of backends or Partitioners")
    named = (w if isinstance(w, Partitioner) else CapabilityPartitioner(w) for w in wanted if w != PORTABLE)
    return [_of_real_backend(partitioner, registry) for partitioner in named]


def _of_real_backend(partitioner: Partitioner, registry: Registry) -> Partitioner:
    """The same where its backend is an alias, with the backend that this stands for here."""
    alias = partitioner.backend
    name = registry.resolve(alias)
    if name == alias:
        return partitioner
    if partitioner.options:
        raise options_of_alias(alias, name)
    found = copy(partitioner)
    found.backend = name
    return found


def _absent(error: BackendError, policy: str) -> str:
    """What the report says of a backend that is not here; raises or warns as the policy wants it."""
    if policy == "error":
        raise error
    if policy == "warn":
        warnings.warn(f"not used: {error}", RuntimeWarning, stacklevel=5)
    return f"not used: {error}"
