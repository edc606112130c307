"""The registry: which backends and kernel libraries there are, in what state, and their halves when they are used."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn, cast

from delegate.backends.info import API_VERSION, Availability, BackendAlias, BackendInfo
from delegate.errors import (
    BackendBroken,
    BackendError,
    BackendIncompatible,
    BackendNotFound,
    BackendUnavailable,
    KernelError,
    did_you_mean,
)
from delegate.plugins import (
    BLOCK_VARIABLE,
    Plugin,
    State,
    backend_of,
    blocked_names,
    discover,
    full_traceback,
    is_blocked,
    load_object,
    one_line,
)

if TYPE_CHECKING:
    from delegate.backends.aot import Backend
    from delegate.kernels.libraries import KernelLibrary, Wanted
    from delegate.kernels.table import KernelTable
    from delegate.runtime.backend import BackendRuntime

BACKENDS = "delegate.backends"
KERNELS = "delegate.kernels"
IN_PROCESS = "this process"

# The base class of each half by name: naming it keeps torch out of this module.
_BASES = {"aot": ("delegate.backends.aot", "Backend"), "runtime": ("delegate.runtime.backend", "BackendRuntime")}
_OPTIONS = ("delegate.backends.aot", "Options")
_AOT_NEEDS = frozenset({"torch", "pydantic", "yaml"})
_ERRORS: dict[State, type[BackendError]] = {
    State.BROKEN: BackendBroken,
    State.INCOMPATIBLE: BackendIncompatible,
    State.UNAVAILABLE: BackendUnavailable,
    State.BLOCKED: BackendUnavailable,
}


@dataclass(frozen=True, slots=True)
class BackendState:
    """A backend as it is found on this machine.

    Args:
        name: what users write.
        state: what can be done with it.
        owner, version: the distribution that declares it; several owners are joined by " and ".
        info: None where it is broken or blocked.
        availability: what its probe said; None where it was not asked.
        detail: one sentence on why it is not ok; empty where it is.
        remedy: how to mend that, or of one that is ok, what of it cannot be used.
        error: what a broken plugin raised.
        stands_for: of a name that stands for the best of several backends, the name of that one; its state is this one.
    """

    name: str
    state: State
    owner: str
    version: str
    info: BackendInfo | None = None
    availability: Availability | None = None
    detail: str = ""
    remedy: str = ""
    error: BaseException | None = field(default=None, repr=False, compare=False)
    stands_for: str = ""

    @property
    def traceback(self) -> str:
        """The traceback of a broken plugin as Python prints it; empty for another."""
        return full_traceback(self.error)


class Registry:
    """Backends and kernel libraries of the installed distributions, as they were when the registry was made.

    A plugin is imported when its state is asked for, its halves when they are asked for, each at most once.
    """

    def __init__(self) -> None:
        self._plugins = discover(BACKENDS)
        self._registered: dict[str, BackendInfo | BackendAlias] = {}
        self._states: dict[str, BackendState] = {}
        self._aliases: dict[str, BackendAlias] = {}
        self._kernel_libraries: dict[str, KernelLibrary] = {}
        self._blocked = blocked_names()
        self._warned: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """The names of all backends in alphabetical order, whatever their state; imports nothing."""
        return tuple(sorted({*self._plugins, *self._registered}))

    def state(self, name: str) -> BackendState:
        """The state of one backend, under the name of an instance where it is asked by that; raises BackendNotFound."""
        if (backend := backend_of(name)) != name:
            return replace(self.state(backend), name=name)
        if name not in self._states:
            self._states[name] = self._find(name)
        return self._states[name]

    def resolve(self, name: str) -> str:
        """The name with the backend that it means here, where it may be an alias; one that is not known as it is."""
        backend = backend_of(name)
        if backend not in self.names():
            return name
        return (self.state(backend).stands_for or backend) + name.removeprefix(backend)

    def states(self) -> tuple[BackendState, ...]:
        """The states of all backends, in the order of their names."""
        return tuple(self.state(name) for name in self.names())

    def available(self) -> tuple[str, ...]:
        """The names of the backends to use where none is named, the preferred ones first.

        Those whose device a CPU only plays are left out, and of several that one name stands for, all but the one that
        it means here. Warns, once, of each broken one, as nobody asked for it.
        """
        states = self.states()
        for s in states:
            if s.state is State.BROKEN and s.name not in self._warned:
                self._warned.add(s.name)
                warnings.warn(f"{s.detail}: {s.remedy}", RuntimeWarning, stacklevel=2)
        second = {
            other for name, alias in self._aliases.items() for other in alias.stands_for if other != self.resolve(name)
        }
        ready = [s for s in states if _is_here(s) and not s.stands_for and s.name not in second]
        return tuple(s.name for s in sorted(ready, key=_preference))

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
        """The runtime half of a backend; raises as `aot` does."""
        return cast("type[BackendRuntime]", self._half(name, "runtime", absent_ok=False))

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

    def kernel_libraries(self) -> tuple[KernelLibrary, ...]:
        """All kernel libraries in the order in which they are asked for a kernel: plugins, the project's own, and those
        that are asked only where they are named.
        """
        return self._libraries

    def kernel_tables(self, wanted: Wanted | None = None) -> tuple[KernelTable, ...]:
        """The tables of kernel libraries, in order of preference.

        Args:
            wanted: a library's name, a table of the caller's own, or several of these; "portable" comes last where it
                is not named. None: all libraries that work but for "aten"; warns, once, of each broken one.

        Raises:
            KernelError: a library that was named cannot be used; or, where none is named, two libraries claim one
                kernel; or the project's own library is broken.
        """
        if wanted is not None:
            from delegate.kernels.libraries import in_preferred_order

            return in_preferred_order(wanted, self._kernel_plugins, self._library)
        for library in self._libraries:
            if library.state is State.BROKEN and library.name not in self._warned:
                self._warned.add(library.name)
                warnings.warn(f"{library.detail}: uninstall {library.owner}", RuntimeWarning, stacklevel=2)
        return tuple(library.table for library in self._libraries if library.table is not None)

    def package_kernels(self, package: str) -> KernelTable | None:
        """The project's kernels of another package's operators; None where it has none, or they are blocked.

        Raises:
            KernelError: the library is broken.
        """
        from delegate.kernels.libraries import PACKAGES

        if package not in PACKAGES or package not in self._kernel_plugins:
            return None
        library = self._library(package)
        if library.state is State.BROKEN:
            raise KernelError(library.detail, remedy=f"update or uninstall {library.owner}") from library.error
        return library.table

    @functools.cached_property
    def _kernel_plugins(self) -> dict[str, tuple[Plugin, ...]]:
        return discover(KERNELS)

    @functools.cached_property
    def _libraries(self) -> tuple[KernelLibrary, ...]:
        from delegate.kernels.libraries import ON_DEMAND, PACKAGES, in_default_order, on_demand

        demanded = PACKAGES.union(ON_DEMAND)
        by_default = in_default_order(self._library(name) for name in self._kernel_plugins if name not in demanded)
        named = [claims[0] for name, claims in self._kernel_plugins.items() if name in demanded]
        return (*by_default, *(on_demand(plugin, self._blocked) for plugin in named))

    def _library(self, name: str) -> KernelLibrary:
        if name not in self._kernel_libraries:
            from delegate.kernels.libraries import load_library  # programs of delegates alone need none

            self._kernel_libraries[name] = load_library(self._kernel_plugins[name], self._blocked)
        return self._kernel_libraries[name]

    def _find(self, name: str) -> BackendState:
        if name in self._registered:
            return self._state_of(self._registered[name], IN_PROCESS, "")
        if name not in self._plugins:
            raise BackendNotFound(f"no backend is named {name!r}", remedy=did_you_mean(name, self.names()))
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
        plugin = claims[0]
        found = _loaded(plugin)
        return found if isinstance(found, BackendState) else self._state_of(found, plugin.owner, plugin.version)

    def _state_of(self, info: BackendInfo | BackendAlias, owner: str, version: str) -> BackendState:
        if isinstance(info, BackendInfo):
            return _probed(info, owner, version)
        self._aliases[info.name] = info
        return self._best(info, owner, version)

    def _best(self, alias: BackendAlias, owner: str, version: str) -> BackendState:
        """The state of the backend that an alias stands for here."""
        known = (self._plugins.keys() | self._registered.keys()) - self._aliases.keys()
        if unknown := [name for name in alias.stands_for if name not in known]:
            return _broken(alias.name, owner, version, f"stands for {unknown[0]!r}, which is no backend")
        states = [self.state(name) for name in alias.stands_for]
        working = [s for s in reversed(states) if s.state is State.OK]
        best = next((s for s in states if _is_here(s)), working[0] if working else states[-1])
        named = replace(
            best,
            name=alias.name,
            owner=owner,
            version=version,
            info=best.info and replace(best.info, description=alias.description),
            stands_for=best.stands_for or best.name,
        )
        if working:
            return named
        why = "; ".join(s.detail for s in states)
        return replace(named, detail=f"no backend that {alias.name!r} stands for is available here: {why}")

    def _require(self, name: str, absent_ok: bool) -> BackendInfo:
        state = self.state(name)
        usable = state.state is State.OK or (absent_ok and state.state is State.UNAVAILABLE)
        if state.info is None or not usable:
            _refuse(state)
        return state.info

    def _half(self, name: str, half: str, absent_ok: bool) -> type:
        info = self._require(name, absent_ok)
        name = info.name  # not an alias
        path: str = getattr(info, half)
        try:
            found = load_object(path)
        except (Exception, SystemExit) as error:
            if half == "aot" and isinstance(error, ModuleNotFoundError) and error.name in _AOT_NEEDS:
                what = f"the AOT half of backend {name!r} needs {error.name}, which is not installed"
                raise BackendUnavailable(what, remedy="pip install 'delegate[aot]'") from error
            self._break(name, f"fails to import {path}: {one_line(error)}", error)
        if not (isinstance(found, type) and _BASES[half] in {(c.__module__, c.__qualname__) for c in found.__mro__}):
            self._break(name, f"gives {path}, which is no subclass of {'.'.join(_BASES[half])}")
        if problem := _incomplete(found, half, name):
            self._break(name, f"gives {path}, {problem}")
        return found

    def _break(self, name: str, problem: str, error: BaseException | None = None) -> NoReturn:
        old = self.state(name)
        self._states[name] = _broken(name, old.owner, old.version, problem, error)
        _refuse(self._states[name])


@functools.cache
def default_registry() -> Registry:
    """The registry that is used where none is given."""
    return Registry()


def _incomplete(half: type, which: str, name: str) -> str:
    """What a half lacks, if so."""
    if missing := sorted(getattr(half, "__abstractmethods__", ())):
        return f"which has no {' and no '.join(missing)}"
    if which == "aot":
        if (own := getattr(half, "name", None)) != name:
            return f"whose name is {own!r}"
        options = getattr(half, "Options", None)
        if _OPTIONS not in {(c.__module__, c.__qualname__) for c in getattr(options, "__mro__", ())}:
            return f"whose Options is no subclass of {'.'.join(_OPTIONS)}"
    return ""


def _refuse(state: BackendState) -> NoReturn:
    raise _ERRORS[state.state](state.detail, remedy=state.remedy) from state.error


def _broken(name: str, owner: str, version: str, problem: str, error: BaseException | None = None) -> BackendState:
    label = f"{owner} {version}".strip()
    detail = f"backend {name!r} of {label} is broken: it {problem}"
    if owner == IN_PROCESS:
        return BackendState(name, State.BROKEN, owner, version, detail=detail, remedy="mend it", error=error)
    remedy = f"`delegate backends {name}` shows the traceback; " if error else ""
    remedy += f"update or uninstall {owner}"
    return BackendState(name, State.BROKEN, owner, version, detail=detail, remedy=remedy, error=error)


def _loaded(plugin: Plugin) -> BackendState | BackendInfo | BackendAlias:
    """What a plugin's entry point gives; its state where that is broken."""
    place = (plugin.name, plugin.owner, plugin.version)
    try:
        info = plugin.load()
    except (Exception, SystemExit) as error:
        return _broken(*place, f"fails to import: {one_line(error)}", error)
    if not isinstance(info, BackendInfo | BackendAlias):
        return _broken(*place, f"gives {type(info).__name__} at {plugin.value}, not a BackendInfo")
    if info.name != plugin.name:
        return _broken(*place, f"calls itself {info.name!r}, unlike its entry point {plugin.name!r}")
    return info


def _probed(info: BackendInfo, owner: str, version: str) -> BackendState:
    """Compare the API version, then ask the probe."""
    try:
        (major, minor), ours = info.api_version, API_VERSION
        if major != ours[0] or minor > ours[1]:
            detail = (
                f"backend {info.name!r} of {owner} speaks version {major}.{minor} of the plugin API, "
                f"this project {ours[0]}.{ours[1]}"
            )
            remedy = f"update {owner if (major, minor) < ours else 'delegate'}"
            return BackendState(info.name, State.INCOMPATIBLE, owner, version, info, None, detail, remedy)
        availability = info.probe()
    except (Exception, SystemExit) as error:
        return _broken(info.name, owner, version, f"fails when it is probed: {one_line(error)}", error)
    if not isinstance(availability, Availability):
        return _broken(info.name, owner, version, f"gives {type(availability).__name__}, not Availability, when probed")
    if availability.ok:
        return BackendState(info.name, State.OK, owner, version, info, availability, remedy=availability.remedy)
    detail = f"backend {info.name!r} is not available here: {' '.join(availability.reason.split())}"
    return BackendState(
        info.name, State.UNAVAILABLE, owner, version, info, availability, detail, availability.remedy or info.install
    )


def _is_here(state: BackendState) -> bool:
    """Whether a backend works, and on its own device."""
    return state.state is State.OK and state.availability is not None and not state.availability.stand_in


def _preference(state: BackendState) -> tuple[int, str]:
    return (-state.info.preference if state.info else 0, state.name)
