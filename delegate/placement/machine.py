"""The profile of this machine for the selected backends: from the cache, or measured now."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from delegate.cache.aot.placements import open_choices
from delegate.config import Cache
from delegate.costs.machine import machine_profile
from delegate.costs.profile import MachineProfile
from delegate.errors import ConfigError
from delegate.kernels.libraries import KernelRequest
from delegate.placement.lock import versions_of
from delegate.plugins import PORTABLE
from delegate.registry import Registry, default_registry
from delegate.selection import cache_folder_of


def profile_of_this_machine(
    backends: Iterable[str],
    kernels: KernelRequest | None,
    settings: Cache,
    enabled: bool | None,
    progress: Callable[[str], None] | None,
) -> tuple[MachineProfile, tuple[str, ...]]:
    """Return the profile of this machine, and notes on backends without measured rates.

    Args:
        backends: their names.
        kernels: the kernel libraries that portable nodes run on.
        settings, enabled: of the cache, where the rates are stored; without a cache nothing is measured.
        progress: called with a short text for each measurement; None: it is logged.
    """
    store = open_choices(cache_folder_of(settings, enabled))
    return machine_profile(_identities(backends, kernels, default_registry()), store, progress)


def calibrated(names: Iterable[str] | None, progress: Callable[[str], None]) -> tuple[MachineProfile, tuple[str, ...]]:
    """Measure the rates of backends and of kernels again, and return the profile as `profile_of_this_machine` does.

    Args:
        names: Names of backends; None: all that are available. The others have the rates that are stored.
        progress: called with a short text for each measurement.

    Raises:
        ConfigError: without a cache, nothing can store the rates in.
        BackendError: a backend cannot be used here.
    """
    registry = default_registry()
    store = open_choices(cache_folder_of(Cache()))
    if store is None:
        raise ConfigError("without a cache, nothing can store the rates in", remedy="set DELEGATE_CACHE to a folder")
    available = registry.available()
    chosen = available if names is None else [registry.resolve(n) for n in names if n != PORTABLE]
    for name in chosen:
        registry.runtime(name)
    identities = _identities(dict.fromkeys((*chosen, *available)), None, registry)
    return machine_profile(identities, store, progress, again=[*chosen, PORTABLE])


def _identities(backends: Iterable[str], kernels: KernelRequest | None, registry: Registry) -> dict[str, str]:
    """Return place -> a text of what its rates depend on besides the machine."""
    identities = {name: repr(sorted(versions_of((name,), registry).items())) for name in backends if name != PORTABLE}
    return {**identities, PORTABLE: repr((np.__version__, registry.kernels.identity(kernels)))}
