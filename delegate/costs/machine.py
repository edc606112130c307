"""The profile of this machine: rates from the cache, or measured once by a process for each place."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from functools import cache, partial
from typing import Any

import numpy as np

from delegate.cache.aot.placements import open_choices
from delegate.cache.runtime.environment import host_features, machine
from delegate.cache.runtime.store import Entry, Store
from delegate.common.field_checks import mapping
from delegate.config import Cache
from delegate.costs.profile import MachineProfile, PlaceRates, place_of, read_shipped
from delegate.errors import ConfigError, DelegateError
from delegate.kernels.libraries import KernelRequest
from delegate.plugins import PORTABLE
from delegate.processes.process import Process, ProcessEnded
from delegate.program.cores import cores
from delegate.registry import Registry, default_registry
from delegate.selection import Selection, cache_folder_of, kernel_names, versions_of

LIMIT = 15.0  # seconds of the measurement of one place
_STARTS = 60.0  # seconds in which the process imports torch and the library, on a busy machine
_FORMAT = 2
BUSY = "other processes use the cores"

logger = logging.getLogger(__name__)

Result = PlaceRates | str  # the rates of a place, or the reason that there are none


def profile_of_this_machine(
    selection: Selection, enabled: bool | None, progress: Callable[[str], None] | None
) -> tuple[MachineProfile, tuple[str, ...]]:
    """Return the profile of this machine, and notes on backends without measured rates.

    Args:
        selection: the backends, the kernel libraries that portable nodes run on, and the settings of the cache, where
            the rates are stored; without a cache nothing is measured.
        enabled: use the cache; None: as configured.
        progress: called with a short text for each measurement; None: it is logged.
    """
    kernels = kernel_names(selection.kernels)
    store = open_choices(cache_folder_of(selection.cache, enabled))
    return machine_profile(_identities(selection.backends, kernels, default_registry()), store, progress)


def calibrate_again(
    names: Iterable[str] | None, progress: Callable[[str], None]
) -> tuple[MachineProfile, tuple[str, ...]]:
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


def machine_profile(
    identities: Mapping[str, str],
    store: Store | None,
    progress: Callable[[str], None] | None,
    again: Collection[str] = (),
) -> tuple[MachineProfile, tuple[str, ...]]:
    """Return the profile of this machine, and notes on places whose rates are not measured.

    Args:
        identities: place -> a text with the versions of its libraries.
        store: Where earlier measurements are stored. None: nothing is measured, and the shipped rates hold.
        progress: called with a short text for each measurement; None: it is logged.
        again: places to measure although there are rates in the store, and although the machine is busy. The others
            then have the rates of the store, or those that come with the package.
    """
    profile, notes = MachineProfile(machine(), read_shipped().places), []
    if store is None:
        return profile, ("nothing is calibrated without a cache, and estimates are those of a common machine",)
    tell = progress or logger.warning
    for place, identity in identities.items():
        key = hashlib.sha256(repr((_FORMAT, place, identity, host_features())).encode()).hexdigest()
        earlier = store.read(key, partial(_read_stored, place))
        result: Result | None = None if place in again else earlier
        if result is None and place not in again:
            if again:
                continue
            result = BUSY if is_busy() else None
        if result is None:
            tell(f"calibrating {place} for this machine, once: {LIMIT:g} s at most")
            result = _measure(place, key)
            if result != BUSY:
                store.put(key, asdict(result) if isinstance(result, PlaceRates) else {"problem": result}, [])
        if result == BUSY and isinstance(earlier, PlaceRates):
            notes.append(f"{place} has its earlier rates: {BUSY}")
            result = earlier
        if isinstance(result, PlaceRates):
            profile = profile.with_place(place, result)
        else:
            remedy = "; run `delegate calibrate` when the machine is idle" if result == BUSY else ""
            notes.append(
                f"{place} is not calibrated, and its estimates are those of a common machine: {result}{remedy}"
            )
    return profile, tuple(notes)


def is_busy() -> bool:
    """Return true if other processes have used the cores in the last minute, as far as the system reports it."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > cores()


@cache
def _measure(place: str, key: str) -> Result:
    """Return the rates of a place, measured once in a process, also if that fails.

    `key` tells versions of its libraries apart.
    """
    try:
        process = Process("delegate.costs.calibration:questions", is_quiet=True)
    except OSError as error:
        return f"no process can be started: {error}"
    try:
        return _result(place, process.ask("measure", [place, LIMIT], limit=LIMIT + _STARTS))
    except (ProcessEnded, DelegateError, ValueError, KeyError, TypeError) as error:
        return f"its measurement failed: {error}"
    finally:
        process.end()


def _read_stored(place: str, entry: Entry) -> Result:
    return _result(place, entry.about)


def _result(place: str, data: Mapping[str, Any]) -> Result:
    """Return the result of plain data. Kinds that the place does not run alone, or had no time for, have shipped rates.

    Raises KeyError, TypeError or ValueError for impossible data.
    """
    if "problem" in data:
        return str(data["problem"])
    common = asdict(read_shipped().rates(place))
    operators = {**common["operators"], **mapping(data, "operators")}
    return place_of(place, {**data, "operators": operators, "compile": common["compile"]})
