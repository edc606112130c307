"""Packages that measure on other machines: their descriptions and states, found by entry point."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from delegate.common.field_checks import expect, expect_texts, expect_version, is_texts
from delegate.errors import ConfigError
from delegate.plugins import API_VERSION, InstalledPlugin, Plugin, PluginState, import_claimed, import_plugin

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
        part: "package.module:name" of what a request opens; see `OpenRemotePlacement` and `OpenCluster`.
        requires: modules that it imports and that may be absent.
        install: the exact command that installs these modules.
        api_version: the version of the plugin API for which the package was written.
    """

    name: str
    description: str
    part: str
    requires: tuple[str, ...] = ()
    install: str = ""
    api_version: tuple[int, int] = API_VERSION

    def __post_init__(self) -> None:
        expect_texts(self, "name", "description", "part", "install")
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
        info = import_claimed(cls, claims, blocked, MeasurementInfo)
        if isinstance(info, cls):
            return info
        (plugin,) = claims
        if other := cls.other_version(plugin, info.api_version, info=info):
            return other
        for module in info.requires:
            if importlib.util.find_spec(module) is None:
                detail = f"{cls.noun} {info.name!r} needs {module}, which is not installed"
                return cls.of(plugin, PluginState.UNAVAILABLE, info=info, detail=detail, remedy=info.install)
        return cls.of(plugin, info=info)


def load_part(states: Iterable[MeasurementState], name: str) -> Any:
    """Import a package, and return what its info names.

    Args:
        states: all that are installed.
        name: the name of the requested one.

    Raises:
        ConfigError: the package is not installed, or cannot be used.
    """
    state = next((state for state in states if state.name == name), None)
    if state is None:
        package, command = _PACKAGES[name]
        what = f"measuring by {name!r} needs the package {package}, which is not installed"
        raise ConfigError(what, remedy=command)
    state.require_ok(ConfigError)
    assert state.info is not None
    plugin = Plugin(name, state.owner, state.version, state.info.part)
    part = import_plugin(MeasurementState, plugin)
    if isinstance(part, MeasurementState):
        part.require_ok(ConfigError)
    return part
