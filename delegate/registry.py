"""The registry: which backends and kernel libraries there are, in what state, and their halves when they are used."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from delegate.backends.info import BackendAlias, BackendInfo
from delegate.backends.state import (
    IN_PROCESS,
    BackendState,
    HalfBroken,
    broken,
    found,
    from_json,
    load_half,
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
    BLOCK_VARIABLE,
    OWN,
    Plugin,
    State,
    backend_of,
    blocked_in_vain,
    blocked_names,
    discover,
    full_traceback,
    is_blocked,
    refusal,
)

if TYPE_CHECKING:
    from delegate.backends.aot import Backend
    from delegate.kernels.installed import InstalledKernels
    from delegate.probing.prober import Answer, Prober
    from delegate.runtime.backend import BackendRuntime

BACKENDS = "delegate.backends"

_ERRORS: dict[State, type[BackendError]] = {
    State.BROKEN: BackendBroken,
    State.INCOMPATIBLE: BackendIncompatible,
    State.UNAVAILABLE: BackendUnavailable,
    State.BLOCKED: BackendUnavailable,
}


class Registry:
    """Backends and kernel libraries of the installed distributions, as they were when the registry was made.

    The state of a backend is asked for in a process of its own, and kept on disk; its halves are imported here when
    they are asked for.

    Args:
        refresh: forget what is kept.
    """

    def __init__(self, *, refresh: bool = False) -> None:
        self._plugins, self._refused = discover(BACKENDS)
        self._refresh = refresh
        self._registered: dict[str, BackendInfo | BackendAlias] = {}
        self._states: dict[str, BackendState] = {}
        self._aliases: dict[str, BackendAlias] = {}
        self._blocked = blocked_names()
        self._warned: set[str] = set()
        for name, near in self.blocked_in_vain().items():
            if near:  # what is installed elsewhere alone may be blocked everywhere
                self.warn(f"{BLOCK_VARIABLE}={name}", blocked_in_vain(name, near))

    def blocked_in_vain(self) -> dict[str, list[str]]:
        """What the environment blocks though it is no plugin here, with the plugins whose names are like it."""
        unknown = sorted(self._blocked - {"*"} - self._plugins.keys() - {p.name for p in self._refused})
        if not unknown:
            return {}
        from delegate.kernels.installed import KERNELS

        known = {*self._plugins, *discover(KERNELS).claims}
        import difflib  # every process imports this module

        return {name: difflib.get_close_matches(name, sorted(known)) for name in unknown if name not in known}

    def names(self) -> tuple[str, ...]:
        """The names of all backends in alphabetical order, whatever their state; imports nothing."""
        return tuple(sorted({*self._plugins, *self._registered}))

    def state(self, name: str) -> BackendState:
        """The state of one backend, under the name of an instance where it is asked by that; raises BackendNotFound."""
        if (backend := backend_of(name)) != name:
            return replace(self.state(backend), name=name)
        if name not in self._states:
            self._states[name] = self._find(name, self._asked)
        return self._states[name]

    def resolve(self, name: str) -> str:
        """The name with the backend that it means here, where it may be an alias; one that is not known as it is."""
        backend = backend_of(name)
        if backend not in self.names():
            return name
        return (self.state(backend).stands_for or backend) + name.removeprefix(backend)

    def states(self) -> tuple[BackendState, ...]:
        """The states of all backends, in the order of their names."""
        self._ask_all()
        return tuple(self.state(name) for name in self.names())

    def refused(self) -> tuple[BackendState, ...]:
        """Plugins that claim the name of a backend of this project's own, which stays."""
        return tuple(
            BackendState(p.name, State.BROKEN, p.owner, p.version, detail=refusal(p, "backend")) for p in self._refused
        )

    def available(self) -> tuple[str, ...]:
        """The names of the backends to use where none is named, the preferred ones first.

        Those whose device a CPU only plays are left out, and of several that one name stands for, all but the one that
        it means here. Warns, once, of each broken one, as nobody asked for it.
        """
        states = self.states()
        for s in states:
            if s.state is State.BROKEN:
                self.warn(s.name, f"{s.detail}: {s.remedy}")
        for plugin in self._refused:
            self.warn(plugin.label, refusal(plugin, "backend"))
        second = {
            other for name, alias in self._aliases.items() for other in alias.stands_for if other != self.resolve(name)
        }
        ready = [s for s in states if _is_here(s) and not s.stands_for and s.name not in second]
        return tuple(s.name for s in sorted(ready, key=_preference) if self._compiles(s.name))

    def warn(self, what: str, sentence: str) -> None:
        """Warn, once, of a plugin that nobody asked for."""
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(sentence, RuntimeWarning, stacklevel=3)

    def half(self, name: str, half: str) -> dict[str, Any]:
        """What is wrong with the "aot" or the "runtime" half of a backend, which is imported in a process of its own
        where it is not this project's own; of one to compile with that works, the JSON schema of its options.

        Raises:
            BackendNotFound, BackendBroken, BackendIncompatible, BackendUnavailable: as their names say.
        """
        info = self._require(name, absent_ok=True)
        if not self.is_plugin(info.name):
            made = self.aot(name, absent_ok=True) if half == "aot" else self.runtime(name)
            return {"options": schema_of(made)} if half == "aot" else {}
        (plugin,) = self._plugins[info.name]
        data = self._prober.ask(plugin, half, getattr(info, half).partition(":")[0]).data
        if "absent" in data:
            raise BackendUnavailable(data["absent"], remedy=data["remedy"])
        if "problem" in data:
            self._states[info.name] = _told(plugin, data)
            _refuse(self._states[info.name])
        return data

    def info(self, name: str) -> BackendInfo:
        """The info of a backend, whose library may be absent.

        Raises:
            BackendNotFound, BackendBroken, BackendIncompatible: as their names say.
            BackendUnavailable: it is blocked.
        """
        return self._require(name, absent_ok=True)

    def aot(self, name: str, *, absent_ok: bool = False) -> type[Backend]:
        """The AOT half of a backend.

        Args:
            name: of the backend.
            absent_ok: give it even where its library or device is absent, for instance to read its options.

        Raises:
            BackendNotFound, BackendBroken, BackendIncompatible, BackendUnavailable: as their names say.
        """
        return cast("type[Backend]", self._half(name, "aot", absent_ok))

    def runtime(self, name: str) -> type[BackendRuntime]:
        """The runtime half of a backend; raises as `aot` does.

        One of this project's own whose state nobody has asked for is probed in this process, which is to run its
        library anyway: a program starts the sooner.
        """
        name = backend_of(name)
        if name not in self._states and name in self._plugins and not self.is_plugin(name):
            self._states[name] = self._find(name, self._here)
        return cast("type[BackendRuntime]", self._half(name, "runtime", absent_ok=False))

    def is_own(self, name: str) -> bool:
        """Whether a backend is this project's own, and neither a plugin nor registered in this process alone."""
        plugins = self._plugins.get(backend_of(name))
        return plugins is not None and plugins[0].owner == OWN

    def is_plugin(self, name: str) -> bool:
        """Return whether another distribution declares a backend."""
        plugins = self._plugins.get(backend_of(name))
        return plugins is not None and plugins[0].owner != OWN

    def register(self, info: BackendInfo | BackendAlias) -> None:
        """Add a backend, or a name for the best of several, for this process, without packaging it.

        Raises:
            BackendError: the name is taken.
            BackendBroken: `info` is neither.
        """
        if not isinstance(info, BackendInfo | BackendAlias):
            raise BackendBroken(f"register() takes a BackendInfo, not {type(info).__name__}")
        if info.name in self.names():
            owner = self.state(info.name).owner
            raise BackendError(f"backend {info.name!r} is registered already, by {owner}", remedy="use another name")
        self._registered[info.name] = info

    @functools.cached_property
    def kernels(self) -> InstalledKernels:
        """The kernel libraries; programs of delegates alone need none of them."""
        from delegate.kernels.installed import InstalledKernels

        return InstalledKernels(self._blocked, self.warn)

    def _find(self, name: str, ask: Callable[[Plugin], BackendState]) -> BackendState:
        if name in self._registered:
            info, plugin = self._registered[name], Plugin(name, IN_PROCESS, "", "")
            return self._state_of(info if isinstance(info, BackendAlias) else probed(info, plugin), plugin)
        if name not in self._plugins:
            several = "," in name and "several are a list, on the command line `-b` for each"
            raise BackendNotFound(f"no backend is named {name!r}", remedy=several or did_you_mean(name, self.names()))
        claims = self._plugins[name]
        if is_blocked(name, self._blocked):
            owner = " and ".join(p.owner for p in claims)
            detail = f"backend {name!r} is blocked by the environment variable {BLOCK_VARIABLE}"
            return BackendState(
                name, State.BLOCKED, owner, claims[0].version, None, None, detail, "take it out of there"
            )
        if len(claims) > 1:
            labels = " and ".join(p.label for p in claims)
            detail = f"several distributions claim the backend {name!r}: {labels}"
            return BackendState(name, State.BROKEN, labels, "", None, None, detail, "uninstall all but one of them")
        return ask(claims[0])

    @functools.cached_property
    def _prober(self) -> Prober:
        from delegate.probing.prober import Prober  # a program of this project's own backends does without it

        return Prober(refresh=self._refresh)

    def _ask_all(self) -> None:
        """Ask all plugins whose state is not known, several at a time."""
        from delegate.probing.process import CannotAsk

        unknown = [
            claims[0]
            for name, claims in self._plugins.items()
            if name not in self._states and len(claims) == 1 and not is_blocked(name, self._blocked)
        ]
        try:
            answers = self._prober.probe_all(unknown)
        except CannotAsk:
            return  # they are asked one by one, here
        said = dict(zip(unknown, answers, strict=True))
        for plugin in sorted(unknown, key=lambda p: "alias" in said[p].data):  # what an alias stands for comes first
            self._states[plugin.name] = self._understood(plugin, said[plugin])

    def _asked(self, plugin: Plugin, *, anew: bool = False) -> BackendState:
        """The state of a plugin, which is asked in a process of its own where one can be started."""
        from delegate.probing.process import CannotAsk

        try:
            return self._understood(plugin, self._prober.ask(plugin, "probe", plugin.module, refresh=anew))
        except CannotAsk:
            return self._here(plugin)

    def _here(self, plugin: Plugin) -> BackendState:
        """The state of a plugin, which is asked in this process."""
        return self._state_of(found(plugin), plugin)

    def _understood(self, plugin: Plugin, answer: Answer) -> BackendState:
        """The state that an answer tells."""
        data = answer.data
        if "problem" in data:
            return replace(_told(plugin, data), kept=answer.cached)
        try:
            said = from_json(data, plugin)
        except (LookupError, TypeError, ValueError, AttributeError):
            return broken(plugin, "answers nonsense when it is probed")
        state = self._state_of(said, plugin)
        if answer.cached and state.state is State.BROKEN and isinstance(said, BackendAlias):
            return self._asked(plugin, anew=True)  # the cached names are of no backend
        return replace(state, kept=answer.cached)

    def _state_of(self, said: BackendState | BackendAlias, plugin: Plugin) -> BackendState:
        if isinstance(said, BackendState):
            return said
        self._aliases[said.name] = said
        return self._best(said, plugin)

    def _compiles(self, name: str) -> bool:
        """Whether the AOT half of a backend that nobody asked for can be used; warns, once, where not."""
        try:
            self.half(name, "aot")
            self.aot(name)
        except BackendError as error:
            self.warn(name, str(error))
            return False
        return True

    def _best(self, alias: BackendAlias, plugin: Plugin) -> BackendState:
        """The state of the backend that an alias stands for here."""
        known = (self._plugins.keys() | self._registered.keys()) - self._aliases.keys()
        if unknown := [name for name in alias.stands_for if name not in known]:
            return broken(plugin, f"stands for {unknown[0]!r}, which is no backend")
        states = [self.state(name) for name in alias.stands_for]
        working = [s for s in reversed(states) if s.state is State.OK]
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
        if state.state is State.UNAVAILABLE and state.kept and not absent_ok and not state.stands_for:
            # devices come back, and this one is asked for by name
            self._states[name] = state = self._asked(self._plugins[name][0], anew=True)
        usable = state.state is State.OK or (absent_ok and state.state is State.UNAVAILABLE)
        if state.info is None or not usable:
            _refuse(state)
        return state.info

    def _half(self, name: str, half: str, absent_ok: bool) -> type:
        info = self._require(name, absent_ok=absent_ok)
        try:
            return load_half(info, half)
        except HalfBroken as error:
            cause = error.__cause__
            self._break(info.name, error.problem, full_traceback(cause), cause)  # not an alias

    def _break(self, name: str, problem: str, traceback: str, cause: BaseException | None = None) -> NoReturn:
        old = self.state(name)
        self._states[name] = broken(Plugin(name, old.owner, old.version, ""), problem, traceback)
        _refuse(self._states[name], cause)


@functools.cache
def default_registry() -> Registry:
    """The registry that is used where none is given."""
    return Registry()


def _told(plugin: Plugin, data: dict[str, str]) -> BackendState:
    """The state of a plugin that gave another process no answer, or a bad one."""
    state = broken(plugin, data["problem"], data["traceback"])
    return replace(state, remedy=state.remedy + "; or `delegate backends --refresh` asks it again")


def _refuse(state: BackendState, cause: BaseException | None = None) -> NoReturn:
    raise _ERRORS[state.state](state.detail, remedy=state.remedy) from cause


def _is_here(state: BackendState) -> bool:
    """Whether a backend works, and on its own device."""
    return state.state is State.OK and state.availability is not None and not state.availability.stand_in


def _preference(state: BackendState) -> tuple[int, str]:
    return (-state.info.preference if state.info else 0, state.name)
