"""The registry of plugins: the states of backends, kernel libraries and measurements, and parts on demand."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from delegate.backends.info import BackendAlias, BackendInfo
from delegate.backends.state import (
    IN_PROCESS,
    BackendState,
    PartBroken,
    broken,
    found,
    from_json,
    load_part,
    probed,
    schema_of,
)
from delegate.errors import (
    BackendBroken,
    BackendError,
    BackendIncompatible,
    BackendNotFound,
    BackendUnavailable,
    did_you_mean,
)
from delegate.plugins import (
    BACKENDS,
    BLOCK_VARIABLE,
    COMMANDS,
    KERNELS,
    MEASUREMENTS,
    NAME,
    OWN,
    PORTABLE,
    Plugin,
    PluginState,
    backend_of,
    blocked_in_vain,
    blocked_names,
    discover,
    full_traceback,
    in_known_spelling,
    is_blocked,
    refusal,
)
from delegate.user_warnings import warn_user

if TYPE_CHECKING:
    from delegate.backends.aot import Backend
    from delegate.kernels.libraries import InstalledKernels
    from delegate.measurements import InstalledMeasurements
    from delegate.processes.probing import Answer, Prober
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
        self._plugins, self._refused = discover(BACKENDS)
        self._refresh = refresh
        self._registered: dict[str, BackendInfo | BackendAlias] = {}
        self._states: dict[str, BackendState] = {}
        self._aliases: dict[str, BackendAlias] = {}
        self._blocked = blocked_names()
        self._warned: set[str] = set()
        self._left_out: dict[str, str] = {}
        for name, matches in self.blocked_in_vain().items():
            if matches:  # what is installed elsewhere alone may be blocked everywhere
                self.warn(f"{BLOCK_VARIABLE}={name}", blocked_in_vain(name, matches))

    def blocked_in_vain(self) -> dict[str, list[str]]:
        """Return the blocked names that are no plugins here, each with the plugins of similar names."""
        here = {*self._plugins, *(p.name for p in self._refused)}
        unknown = sorted(name for name in self._blocked - {"*"} if in_known_spelling(name, here) not in here)
        if not unknown:
            return {}
        groups = (KERNELS, MEASUREMENTS, COMMANDS)
        known = {*self._plugins, *(name for group in groups for name in discover(group).claims)}
        import difflib  # every process imports this module

        return {
            name: difflib.get_close_matches(name.casefold(), sorted(known))
            for name in unknown
            if in_known_spelling(name, known) not in known
        }

    def names(self) -> tuple[str, ...]:
        """Return the names of all backends in alphabetical order, in any state; imports nothing."""
        return tuple(sorted({*self._plugins, *self._registered}))

    def state(self, name: str) -> BackendState:
        """Return the state of a backend, under the given name if that names an instance; raises BackendNotFound.

        Names are matched without case.
        """
        if name not in self._states:
            name = self._spelled(name)
        if (backend := backend_of(name)) != name:
            return replace(self.state(backend), name=name)
        if name not in self._states:
            self._states[name] = self._find(name, self._probe)
        return self._states[name]

    def resolve(self, name: str) -> str:
        """Return a name with its alias replaced by the backend that it stands for, in the spelling of the backend.

        Unknown names are unchanged.
        """
        name = self._spelled(name)
        backend = backend_of(name)
        if backend not in self.names():
            return name
        return (self.state(backend).stands_for or backend) + name.removeprefix(backend)

    def _spelled(self, name: str) -> str:
        """Return the name of a backend or an instance in the spelling of the backend."""
        backend = backend_of(name)
        return in_known_spelling(backend, (*self.names(), PORTABLE)) + name[len(backend) :]

    def states(self) -> tuple[BackendState, ...]:
        """Return the states of all backends, in the order of their names."""
        self._probe_all()
        return tuple(self.state(name) for name in self.names())

    def refused(self) -> tuple[BackendState, ...]:
        """Return the plugins that are refused since they claim the name of one of this project's own backends."""
        return tuple(
            BackendState(p.name, PluginState.BROKEN, p.owner, p.version, detail=refusal(p, "backend"))
            for p in self._refused
        )

    def available(self) -> tuple[str, ...]:
        """Return the names of the backends to use by default, in order of preference.

        Backends whose device is emulated on the CPU are left out. Of the backends of an alias, only the one that it
        resolves to is used. Each broken backend is warned about, once; `left_out` has them all.
        """
        states = self.states()
        self._left_out.clear()
        for s in states:
            if s.state is PluginState.BROKEN:
                self._leave_out(s.name, f"{s.detail}: {s.remedy}")
        for plugin in self._refused:
            self.warn(plugin.label, refusal(plugin, "backend"))
        second = {
            other for name, alias in self._aliases.items() for other in alias.stands_for if other != self.resolve(name)
        }
        ready = [s for s in states if _is_here(s) and not s.stands_for and s.name not in second]
        return self._usable([s.name for s in sorted(ready, key=_preference)])

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
        info = self._require(name, absent_ok=True)
        if not self.is_plugin(info.name):
            part_class = self.aot(name, absent_ok=True) if part == "aot" else self.runtime(name)
            return {"options": schema_of(part_class)} if part == "aot" else {}
        (plugin,) = self._plugins[info.name]
        data = self._prober.ask(plugin, part, [getattr(info, part)]).data
        if "absent" in data:
            raise BackendUnavailable(data["absent"], remedy=data["remedy"])
        if "problem" in data:
            self._states[info.name] = _failed_probe(plugin, data)
            _refuse(self._states[info.name])
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
        name = backend_of(name)
        if name not in self._states and name in self._plugins and not self.is_plugin(name):
            self._states[name] = self._find(name, self._probe_here)
        return cast("type[BackendRuntime]", self._part(name, "runtime", absent_ok=False))

    def is_own(self, name: str) -> bool:
        """Return if a backend is this project's own, neither a plugin nor registered only in this process."""
        plugins = self._plugins.get(backend_of(name))
        return plugins is not None and plugins[0].owner == OWN

    def is_plugin(self, name: str) -> bool:
        """Return whether another distribution declares a backend."""
        plugins = self._plugins.get(backend_of(name))
        return plugins is not None and plugins[0].owner != OWN

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
        self._registered[info.name] = info

    @functools.cached_property
    def kernels(self) -> InstalledKernels:
        """The kernel libraries; programs of delegates only need none of them."""
        from delegate.kernels.libraries import InstalledKernels

        return InstalledKernels(self._blocked, self.warn)

    @functools.cached_property
    def measurements(self) -> InstalledMeasurements:
        """The packages that measure on other machines."""
        from delegate.measurements import InstalledMeasurements

        return InstalledMeasurements(self._blocked)

    def _find(self, name: str, probe: Callable[[Plugin], BackendState]) -> BackendState:
        if name in self._registered:
            info, plugin = self._registered[name], Plugin(name, IN_PROCESS, "", "")
            return self._state_of(info if isinstance(info, BackendAlias) else probed(info, plugin), plugin)
        if name not in self._plugins:
            raise BackendNotFound(f"no backend is named {name!r}", remedy=self._remedy(name))
        claims = self._plugins[name]
        if is_blocked(name, self._blocked):
            owner = " and ".join(p.owner for p in claims)
            detail = f"backend {name!r} is blocked by the environment variable {BLOCK_VARIABLE}"
            return BackendState(
                name, PluginState.BLOCKED, owner, claims[0].version, None, None, detail, "remove it from this variable"
            )
        if len(claims) > 1:
            labels = " and ".join(p.label for p in claims)
            detail = f"several distributions provide the backend {name!r}: {labels}"
            return BackendState(
                name, PluginState.BROKEN, labels, "", None, None, detail, "uninstall all but one of them"
            )
        return probe(claims[0])

    def _remedy(self, name: str) -> str:
        """Return what to do about a name that no backend has."""
        if "," in name:
            return "pass several backends as a list, or with one `-b` each on the command line"
        known = did_you_mean(name, self.names())
        if known.startswith("did you mean") or not NAME.fullmatch(name):
            return known
        return f"{known}; if a plugin provides it, install its package, by convention delegate-{name}"

    @functools.cached_property
    def _prober(self) -> Prober:
        from delegate.processes.probing import Prober  # a program of this project's own backends does not need it

        return Prober(refresh=self._refresh)

    def _probe_all(self) -> None:
        """Probe all plugins whose state is unknown, several at a time."""
        from delegate.processes.probing import CannotAsk

        unknown = [
            claims[0]
            for name, claims in self._plugins.items()
            if name not in self._states and len(claims) == 1 and not is_blocked(name, self._blocked)
        ]
        try:
            answers = self._prober.ask_all({plugin: [plugin.value] for plugin in unknown}, "probe")
        except CannotAsk:
            return  # they are probed one by one, in this process
        by_plugin = dict(zip(unknown, answers, strict=True))
        for plugin in sorted(
            unknown, key=lambda p: "alias" in by_plugin[p].data
        ):  # an alias needs the states of its backends
            self._states[plugin.name] = self._state_of_answer(plugin, by_plugin[plugin])

    def _probe(self, plugin: Plugin, *, refresh: bool = False) -> BackendState:
        """Probe a plugin in a separate process, or in this one if no process can be started."""
        from delegate.processes.probing import CannotAsk

        try:
            return self._state_of_answer(plugin, self._prober.ask(plugin, "probe", [plugin.value], refresh=refresh))
        except CannotAsk:
            return self._probe_here(plugin)

    def _probe_here(self, plugin: Plugin) -> BackendState:
        """Probe a plugin in this process."""
        return self._state_of(found(plugin), plugin)

    def _state_of_answer(self, plugin: Plugin, answer: Answer) -> BackendState:
        """Return the state that the answer of a probe describes."""
        data = answer.data
        if "problem" in data:
            return replace(_failed_probe(plugin, data), kept=answer.cached)
        try:
            facts = from_json(data, plugin)
        except (LookupError, TypeError, ValueError, AttributeError):
            return broken(plugin, "returns an invalid answer when it is probed")
        state = self._state_of(facts, plugin)
        if answer.cached and state.state is PluginState.BROKEN and isinstance(facts, BackendAlias):
            return self._probe(plugin, refresh=True)  # the cached names are of no backend
        return replace(state, kept=answer.cached)

    def _state_of(self, facts: BackendState | BackendAlias, plugin: Plugin) -> BackendState:
        if isinstance(facts, BackendState):
            return facts
        self._aliases[facts.name] = facts
        return self._best(facts, plugin)

    def _usable(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of the backends whose parts can be used. A plugin's are first created in a separate process."""
        from delegate.processes.probing import CannotAsk

        infos = {self._plugins[name][0]: self.info(name) for name in names if self.is_plugin(name)}
        plugins = {plugin: [plugin.value, info.aot, info.runtime] for plugin, info in infos.items()}
        with contextlib.suppress(CannotAsk):
            answers = self._prober.ask_all(plugins, "use") if plugins else []
            for plugin, answer in zip(plugins, answers, strict=True):
                if "absent" in answer.data:
                    self._leave_out(plugin.name, f"{answer.data['absent']}: {answer.data['remedy']}")
                elif "problem" in answer.data:
                    state = broken(plugin, answer.data["problem"])
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

    def _best(self, alias: BackendAlias, plugin: Plugin) -> BackendState:
        """Return the state of the backend that an alias stands for on this machine."""
        known = (self._plugins.keys() | self._registered.keys()) - self._aliases.keys()
        if unknown := [name for name in alias.stands_for if name not in known]:
            return broken(plugin, f"stands for {unknown[0]!r}, which is not a backend")
        states = [self.state(name) for name in alias.stands_for]
        working = [s for s in reversed(states) if s.state is PluginState.OK]
        best = next((s for s in states if _is_here(s)), working[0] if working else states[-1])
        named = replace(
            best,
            name=alias.name,
            owner=plugin.owner,
            version=plugin.version,
            info=best.info and replace(best.info, description=alias.description),
            stands_for=best.stands_for or best.name,
        )
        if working:
            return named
        why = "; ".join(s.detail for s in states)
        return replace(named, detail=f"no backend that {alias.name!r} stands for is available here: {why}")

    def _require(self, name: str, *, absent_ok: bool) -> BackendInfo:
        name = backend_of(name)
        state = self.state(name)
        if state.state is PluginState.UNAVAILABLE and state.kept and not absent_ok and not state.stands_for:
            # devices come back, and this one is requested by name
            self._states[name] = state = self._probe(self._plugins[name][0], refresh=True)
        usable = state.state is PluginState.OK or (absent_ok and state.state is PluginState.UNAVAILABLE)
        if state.info is None or not usable:
            _refuse(state)
        return state.info

    def _part(self, name: str, part: str, absent_ok: bool) -> type:
        info = self._require(name, absent_ok=absent_ok)
        try:
            return load_part(info, part)
        except PartBroken as error:
            cause = error.__cause__
            self._break(info.name, error.problem, full_traceback(cause), cause)  # not an alias

    def _break(self, name: str, problem: str, traceback: str, cause: BaseException | None = None) -> NoReturn:
        old = self.state(name)
        self._states[name] = broken(Plugin(name, old.owner, old.version, ""), problem, traceback)
        _refuse(self._states[name], cause)


@functools.cache
def default_registry() -> Registry:
    """Return the default registry."""
    return Registry()


def _failed_probe(plugin: Plugin, data: dict[str, str]) -> BackendState:
    """Return the state of a plugin whose probe failed in a separate process."""
    state = broken(plugin, data["problem"], data["traceback"])
    return replace(state, remedy=state.remedy + "; or run `delegate backends --refresh` to probe it again")


def _refuse(state: BackendState, cause: BaseException | None = None) -> NoReturn:
    raise _ERRORS[state.state](state.detail, remedy=state.remedy) from cause


def _is_here(state: BackendState) -> bool:
    """Return if a backend works, on its own device."""
    return state.state is PluginState.OK and state.availability is not None and not state.availability.stand_in


def _preference(state: BackendState) -> tuple[int, str]:
    return (-state.info.preference if state.info else 0, state.name)
