"""The registry of plugins: the states of backends, kernel libraries and measurements, and parts on demand."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from delegate.backend.info import BackendAlias, BackendInfo
from delegate.backend.state import BackendState, load_part, schema_of
from delegate.backend.states import BackendStates
from delegate.common.user_warnings import warn_user
from delegate.errors import BackendBroken, BackendError, BackendIncompatible, BackendUnavailable
from delegate.plugins import (
    BACKENDS,
    KERNELS,
    MEASUREMENTS,
    OWN,
    PORTABLE,
    InstalledPlugin,
    PluginState,
    UnusablePlugin,
    backend_of,
    discover,
    find_plugins,
    in_known_spelling,
    read_blocked_names,
    refusal,
)

if TYPE_CHECKING:
    from delegate.backend.aot import Backend
    from delegate.kernels.libraries import InstalledKernels
    from delegate.runtime.backend import BackendRuntime

_ERRORS: dict[PluginState, type[BackendError]] = {
    PluginState.BROKEN: BackendBroken,
    PluginState.INCOMPATIBLE: BackendIncompatible,
    PluginState.UNAVAILABLE: BackendUnavailable,
    PluginState.BLOCKED: BackendUnavailable,
}


class Registry:
    """The plugins of the distributions that are installed when the registry is made.

    Backends are probed in a separate process, and their states are cached on disk. Their AOT and runtime parts are
    imported in this process on demand.

    Args:
        refresh: ignore the cached states.
    """

    def __init__(self, *, refresh: bool = False) -> None:
        self._installed = find_plugins()
        self._discovered = discover(BACKENDS, self._installed)
        self._blocked = read_blocked_names()
        self._states = BackendStates(self._discovered.claims, self._blocked, refresh=refresh)
        self._warned: set[str] = set()
        self._left_out: dict[str, str] = {}

    def names(self) -> tuple[str, ...]:
        """Return the names of all backends in alphabetical order, in any state; imports nothing."""
        return self._states.names()

    def state(self, name: str) -> BackendState:
        """Return the state of a backend, under the given name if that names an instance; raises BackendNotFound.

        Names are matched without case.
        """
        name = self._spell(name)
        backend = backend_of(name)
        state = self._states.find(backend)
        return state if name == backend else replace(state, name=name)

    def resolve(self, name: str) -> str:
        """Return a name with its alias replaced by the backend that it stands for, in the spelling of the backend.

        Unknown names are unchanged.
        """
        name = self._spell(name)
        backend = backend_of(name)
        if backend not in self.names():
            return name
        return (self.state(backend).stands_for or backend) + name.removeprefix(backend)

    def _spell(self, name: str) -> str:
        """Return the name of a backend or an instance in the spelling of the backend."""
        backend = backend_of(name)
        return in_known_spelling(backend, (*self.names(), PORTABLE)) + name[len(backend) :]

    def states(self) -> tuple[BackendState, ...]:
        """Return the states of all backends, in the order of their names."""
        self._states.probe_all()
        return tuple(self.state(name) for name in self.names())

    def refused(self) -> tuple[BackendState, ...]:
        """Return the plugins that are refused since they claim the name of a backend in this project."""
        return tuple(
            BackendState.of(plugin, PluginState.BROKEN, detail=refusal(plugin, BackendState.noun))
            for plugin in self._discovered.refused
        )

    def available(self) -> tuple[str, ...]:
        """Return the names of the backends to use by default, in order of preference.

        Backends whose device is emulated on the CPU are left out. Of the backends of an alias, only the one that it
        resolves to is used. Each broken backend is warned about, once; `left_out` has them all.
        """
        states = self.states()
        self._left_out.clear()
        for state in states:
            if state.state is PluginState.BROKEN:
                self._leave_out(state.name, f"{state.detail}: {state.remedy}")
        for plugin in self._discovered.refused:
            self.warn(plugin.label, refusal(plugin, BackendState.noun))
        others = self._states.other_choices()
        ready = [s for s in states if s.is_on_own_device and not s.stands_for and s.name not in others]
        ready.sort(key=lambda s: (-s.info.preference if s.info else 0, s.name))
        return self._usable([s.name for s in ready])

    def _usable(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the backends whose parts can be used. A plugin's are first created in a separate process."""
        for plugin, data in self._states.try_use([self.info(name) for name in names if self.is_plugin(name)]):
            if "absent" in data:
                self._leave_out(plugin.name, f"{data['absent']}: {data['remedy']}")
            elif "problem" in data:
                state = BackendState.broken(plugin, data["problem"])
                remedy = f"{state.remedy}; or run `delegate cache clear` to try it again"
                self._leave_out(plugin.name, f"{state.detail}: {remedy}")
        for name in names:
            if name not in self._left_out:
                try:
                    self.aot(name)
                except BackendError as error:
                    self._leave_out(name, str(error))
        return tuple(name for name in names if name not in self._left_out)

    def _leave_out(self, name: str, sentence: str) -> None:
        self._left_out[name] = sentence
        self.warn(name, sentence)

    def left_out(self) -> tuple[str, ...]:
        """Return a sentence about each backend that the last call of `available` left out because of a fault."""
        return tuple(self._left_out.values())

    def warn(self, what: str, sentence: str) -> None:
        """Warn, once, about a plugin that was not requested."""
        if what not in self._warned:
            self._warned.add(what)
            warn_user(sentence)

    def check_part(self, name: str, part: str) -> dict[str, Any]:
        """Check that the "aot" or the "runtime" part of a backend can be imported, and return the options' JSON schema.

        A plugin's part is imported in a separate process. Only AOT parts have a schema, under the key "options".

        Raises:
            BackendNotFound, BackendBroken, BackendIncompatible, BackendUnavailable: as their names say.
        """
        info = self.info(name)
        if not self.is_plugin(info.name):
            part_class = self.aot(name, absent_ok=True) if part == "aot" else self.runtime(name)
            return {"options": schema_of(part_class)} if part == "aot" else {}
        data = self._states.ask_part(info, part)
        if "absent" in data:
            raise BackendUnavailable(data["absent"], remedy=data["remedy"])
        self._require(info.name, absent_ok=True)  # a problem has made it broken
        return data

    def info(self, name: str) -> BackendInfo:
        """Return the info of a backend, whose library may be absent.

        Raises:
            BackendNotFound, BackendBroken, BackendIncompatible: as their names say.
            BackendUnavailable: it is blocked.
        """
        return self._require(name, absent_ok=True)

    def aot(self, name: str, *, absent_ok: bool = False) -> type[Backend]:
        """Return the AOT part of a backend.

        Args:
            name: the name of the backend.
            absent_ok: return it even if its library or device is absent, for instance to read its options.

        Raises:
            BackendNotFound, BackendBroken, BackendIncompatible, BackendUnavailable: as their names say.
        """
        return cast("type[Backend]", self._part(name, "aot", absent_ok))

    def runtime(self, name: str) -> type[BackendRuntime]:
        """Return the runtime part of a backend; raises as `aot` does.

        One of this project's own backends is probed in this process if its state is unknown. This process will run its
        library anyway, and a program starts sooner.
        """
        if self.is_own(name):
            self._states.find(backend_of(name), is_here=True)
        return cast("type[BackendRuntime]", self._part(name, "runtime", absent_ok=False))

    def _part(self, name: str, part: str, absent_ok: bool) -> type:
        info = self._require(name, absent_ok=absent_ok)
        try:
            return load_part(info, part)
        except UnusablePlugin as error:
            self._states.mark_broken(info.name, str(error), error.__cause__)  # not an alias
            self._require(info.name, absent_ok=absent_ok)
            raise AssertionError(info.name) from error

    def _require(self, name: str, *, absent_ok: bool) -> BackendInfo:
        """Return the info of a backend that can be used; raises the error of its state for others."""
        name = backend_of(name)
        state = self.state(name)
        if state.state is PluginState.UNAVAILABLE and state.kept and not absent_ok and not state.stands_for:
            state = self._states.probe_again(state.name)  # devices come back, and this one is requested by name
        if not (absent_ok and state.state is PluginState.UNAVAILABLE):
            state.require_ok(_ERRORS.get(state.state, BackendError))
        assert state.info is not None
        return state.info

    def is_own(self, name: str) -> bool:
        """Return if a backend is this project's own, neither a plugin nor registered only in this process."""
        return self._owner(name) == OWN

    def is_plugin(self, name: str) -> bool:
        """Return whether another distribution declares a backend."""
        return self._owner(name) not in (OWN, "")

    def _owner(self, name: str) -> str:
        """Return the distribution that declares a backend; "" for others."""
        claims = self._discovered.claims.get(backend_of(name))
        return claims[0].owner if claims else ""

    def register(self, info: BackendInfo | BackendAlias) -> None:
        """Add a backend, or an alias of several, for this process, without packaging it.

        Raises:
            BackendError: the name is taken.
            BackendBroken: `info` is neither.
        """
        if not isinstance(info, BackendInfo | BackendAlias):
            raise BackendBroken(f"register() takes a BackendInfo, not {type(info).__name__}")
        if info.name in self.names():
            owner = self.state(info.name).owner
            raise BackendError(f"backend {info.name!r} is already registered by {owner}", remedy="use another name")
        self._states.registered[info.name] = info

    @functools.cached_property
    def kernels(self) -> InstalledKernels:
        """The kernel libraries; programs of delegates only need none of them."""
        from delegate.kernels.libraries import InstalledKernels

        return InstalledKernels(discover(KERNELS, self._installed), self._blocked, self.warn)

    @functools.cached_property
    def measurements(self) -> tuple[InstalledPlugin, ...]:
        """The packages that measure on other machines, in the order of their names; none is imported."""
        claims = discover(MEASUREMENTS, self._installed).claims.values()
        return tuple(InstalledPlugin.refused(own, self._blocked) or InstalledPlugin.of(own[0]) for own in claims)


@functools.cache
def default_registry() -> Registry:
    """Return the default registry."""
    return Registry()
