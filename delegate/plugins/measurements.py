"""Packages that measure on other machines: their descriptions and states, found by entry point, and their parts.

`delegate.placement.runtime.remote` has the interfaces of the parts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from delegate.common.field_checks import expect, expect_texts, expect_version, is_texts
from delegate.errors import ConfigError
from delegate.plugins import API_VERSION, InstalledPlugin, Plugin, PluginState, import_plugin, load_object, one_line

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
        runtime: "package.module:name" of the part that measures and never imports torch.
        aot: the same of the part that places nodes by the results; empty without such a part.
        requires: modules that the runtime part imports and that may be absent.
        install: the exact command that installs these modules.
        api_version: the version of the plugin API for which the package was written.
    """

    name: str
    description: str
    runtime: str
    aot: str = ""
    requires: tuple[str, ...] = ()
    install: str = ""
    api_version: tuple[int, int] = API_VERSION

    def __post_init__(self) -> None:
        expect_texts(self, "name", "description", "runtime", "aot", "install")
        expect(self, "requires", is_texts(self.requires), "a tuple of names of modules")
        expect_version(self)


@dataclass(frozen=True, slots=True)
class MeasurementState(InstalledPlugin):
    """The state of a way to measure on this machine.

    Args:
        info: its description; None if it is broken or blocked.
    """

    noun: ClassVar[str] = "remote measurement"

    info: MeasurementInfo | None = None

    @classmethod
    def find(cls, claims: tuple[Plugin, ...], blocked: Collection[str]) -> MeasurementState:
        """Import the info that these plugins of one name provide; the state reports problems."""
        if refused := cls.refused(claims, blocked):
            return refused
        (plugin,) = claims
        info = import_plugin(cls, plugin, MeasurementInfo)
        if isinstance(info, cls):
            return info
        if other := cls.other_version(plugin, info.api_version, info=info):
            return other
        for module in info.requires:
            if importlib.util.find_spec(module) is None:
                detail = f"{cls.noun} {info.name!r} needs {module}, which is not installed"
                return cls.of(plugin, PluginState.UNAVAILABLE, info=info, detail=detail, remedy=info.install)
        return cls.of(plugin, info=info)


class InstalledMeasurements:
    """The installed ways to measure on other machines.

    Args:
        claims: the plugins by name.
        blocked: patterns of names that must not be used.
    """

    def __init__(self, claims: Mapping[str, tuple[Plugin, ...]], blocked: Collection[str]) -> None:
        self._claims, self._blocked = claims, blocked

    @cached_property
    def states(self) -> tuple[MeasurementState, ...]:
        """The states of all, in the order of their names."""
        return tuple(MeasurementState.find(claims, self._blocked) for claims in self._claims.values())

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
        state.require_ok(ConfigError)
        path: str = getattr(state.info, part)
        try:
            return load_object(path)
        except (Exception, SystemExit) as error:
            plugin = Plugin(name, state.owner, state.version, path)
            MeasurementState.broken(plugin, f"fails to import {path}: {one_line(error)}", error).require_ok(ConfigError)
