"""Packages that measure on other machines: their descriptions and states, found by entry point, and their parts.

`delegate.placement.runtime.remote` has the interfaces of the parts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from delegate.errors import ConfigError
from delegate.field_checks import expect, is_texts
from delegate.plugins import (
    BLOCK_VARIABLE,
    MEASUREMENTS,
    Plugin,
    PluginState,
    discover,
    full_traceback,
    is_blocked,
    load_object,
    misnamed,
    one_line,
    other_version,
)

API_VERSION = (1, 0)  # (major, minor): a package for another major, or for a newer minor, is incompatible

BUNDLE, CLUSTER = "bundle", "ray"  # what `delegate.Remote` and `delegate.Measured(cluster=...)` request
# The packages that measure, and their installation in a checkout.
_PACKAGES = {
    BUNDLE: ("delegate-remote", "pip install ./plugins/remote"),
    CLUSTER: ("delegate-ray", "pip install './plugins/ray[ray]'"),
}


@dataclass(frozen=True, slots=True)
class MeasurementInfo:
    """The description of a way to measure, to which its entry point in group `delegate.measurements` refers.

    Args:
        name: also the entry point's name.
        description: one line.
        runtime: "package.module:name" of the part that measures. It never imports torch.
        aot: the same of the part that places nodes by the results; empty without such a part.
        requires: modules that the runtime part imports and that may be absent.
        install: the exact command that installs these modules.
        api_version: the version of the interface for which the package was written.
    """

    name: str
    description: str
    runtime: str
    aot: str = ""
    requires: tuple[str, ...] = ()
    install: str = ""
    api_version: tuple[int, int] = API_VERSION

    def __post_init__(self) -> None:
        for field_ in ("name", "description", "runtime", "aot", "install"):
            expect(self, field_, isinstance(getattr(self, field_), str), "text")
        expect(self, "requires", is_texts(self.requires), "a tuple of names of modules")
        version = self.api_version
        pair = isinstance(version, tuple) and [type(part) for part in version] == [int, int]
        expect(self, "api_version", pair, "two whole numbers, (major, minor)")


@dataclass(frozen=True, slots=True)
class MeasurementState:
    """The state of a way to measure on this machine.

    Args:
        name: the name of its entry point.
        state: ok, broken, incompatible, blocked, or unavailable if a module that it requires is absent.
        owner, version: the distribution that declares it.
        info: its description; None if it is broken or blocked.
        detail: one sentence with the reason if it is not ok; else empty.
        remedy: the fix of that.
        error: the exception of a broken package.
    """

    name: str
    state: PluginState
    owner: str
    version: str
    info: MeasurementInfo | None = None
    detail: str = ""
    remedy: str = ""
    error: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def traceback(self) -> str:
        """The traceback of a broken package as Python prints it; empty for others."""
        return full_traceback(self.error)


class InstalledMeasurements:
    """The installed ways to measure on other machines.

    Args:
        blocked: patterns of names that must not be used.
    """

    def __init__(self, blocked: Collection[str]) -> None:
        self._blocked = blocked

    @cached_property
    def states(self) -> tuple[MeasurementState, ...]:
        """The states of all, in the order of their names."""
        return tuple(_state(claims, self._blocked) for claims in discover(MEASUREMENTS).claims.values())

    def part(self, name: str, part: Literal["aot", "runtime"]) -> Any:
        """Import a part of a package, and return what its info names.

        Raises:
            ConfigError: the package is not installed, or cannot be used.
        """
        state = next((state for state in self.states if state.name == name), None)
        if state is None:
            package, command = _PACKAGES[name]
            what = f"measuring by {name!r} needs the package {package}, which is not installed"
            raise ConfigError(what, remedy=command)
        if state.info is None or state.state is not PluginState.OK:
            raise ConfigError(state.detail, remedy=state.remedy) from state.error
        path: str = getattr(state.info, part)
        try:
            return load_object(path)
        except (Exception, SystemExit) as error:
            plugin = Plugin(name, state.owner, state.version, path)
            state = _broken(plugin, f"fails to import {path}: {one_line(error)}", error)
            raise ConfigError(state.detail, remedy=state.remedy) from error


def _state(claims: tuple[Plugin, ...], blocked: Collection[str]) -> MeasurementState:
    """Import the info that these plugins of one name provide; the state reports problems."""
    plugin = claims[0]
    name = plugin.name
    if is_blocked(name, blocked):
        detail = f"remote measurement {name!r} is blocked by the environment variable {BLOCK_VARIABLE}"
        return _not_ok(plugin, PluginState.BLOCKED, None, detail, "remove it from this variable")
    if len(claims) > 1:
        owners = " and ".join(p.label for p in claims)
        detail = f"several distributions provide the remote measurement {name!r}: {owners}"
        return MeasurementState(name, PluginState.BROKEN, owners, "", None, detail, "uninstall all but one of them")
    try:
        info = plugin.load()
    except (Exception, SystemExit) as error:
        return _broken(plugin, f"fails to import: {one_line(error)}", error)
    if not isinstance(info, MeasurementInfo):
        return _broken(plugin, f"provides {type(info).__name__} at {plugin.value}, not a MeasurementInfo")
    if info.name != name:
        return _broken(plugin, misnamed(plugin, info.name))
    return _usable(plugin, info)


def _usable(plugin: Plugin, info: MeasurementInfo) -> MeasurementState:
    """Compare the API version, then look for the required modules."""
    problem, remedy = other_version(info.api_version, API_VERSION, plugin.owner, "the interface")
    if problem:
        detail = f"remote measurement {info.name!r} of {plugin.owner} {problem}"
        return _not_ok(plugin, PluginState.INCOMPATIBLE, info, detail, remedy)
    for module in info.requires:
        if importlib.util.find_spec(module) is None:
            detail = f"remote measurement {info.name!r} needs {module}, which is not installed"
            return _not_ok(plugin, PluginState.UNAVAILABLE, info, detail, info.install)
    return MeasurementState(plugin.name, PluginState.OK, plugin.owner, plugin.version, info)


def _not_ok(
    plugin: Plugin, state: PluginState, info: MeasurementInfo | None, detail: str, remedy: str
) -> MeasurementState:
    return MeasurementState(plugin.name, state, plugin.owner, plugin.version, info, detail, remedy)


def _broken(plugin: Plugin, problem: str, error: BaseException | None = None) -> MeasurementState:
    detail = f"remote measurement {plugin.name!r} of {plugin.label} is broken: it {problem}"
    remedy = f"update or uninstall {plugin.owner}"
    return MeasurementState(
        plugin.name, PluginState.BROKEN, plugin.owner, plugin.version, detail=detail, remedy=remedy, error=error
    )
