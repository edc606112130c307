"""BackendStates: finds the state of each backend, by a probe in a separate process where possible."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delegate.backend.info import BackendAlias, BackendInfo
from delegate.backend.state import BackendState, from_json, probe_backend, probe_plugin
from delegate.errors import BackendNotFound, did_you_mean
from delegate.plugins import IN_PROCESS, NAME, Plugin, PluginState

if TYPE_CHECKING:
    from delegate.processes.probing import Answer, Prober


class BackendStates:
    """The states of backends, each found when it is first needed.

    Args:
        plugins: the plugins by name.
        blocked: patterns of names that must not be used.
        refresh: ignore the cached states.

    Attributes:
        registered: the backends that this process has added.
    """

    def __init__(
        self, plugins: Mapping[str, tuple[Plugin, ...]], blocked: Collection[str], *, refresh: bool = False
    ) -> None:
        self._plugins, self._blocked, self._refresh = plugins, blocked, refresh
        self.registered: dict[str, BackendInfo | BackendAlias] = {}
        self._states: dict[str, BackendState] = {}
        self._aliases: dict[str, BackendAlias] = {}

    def names(self) -> tuple[str, ...]:
        """Return the names of all backends in alphabetical order."""
        return tuple(sorted({*self._plugins, *self.registered}))

    def find(self, name: str, *, is_here: bool = False) -> BackendState:
        """Return the state of a backend; raises BackendNotFound.

        Args:
            name: the name, in the spelling of the backend.
            is_here: probe it in this process if its state is unknown.
        """
        if name not in self._states:
            self._states[name] = self._find(name, is_here)
        return self._states[name]

    def _find(self, name: str, is_here: bool) -> BackendState:
        if name in self.registered:
            info, plugin = self.registered[name], Plugin(name, IN_PROCESS, "", "")
            return self._state_of(info if isinstance(info, BackendAlias) else probe_backend(info, plugin), plugin)
        if name not in self._plugins:
            raise BackendNotFound(f"no backend is named {name!r}", remedy=self._remedy(name))
        claims = self._plugins[name]
        if refused := BackendState.refused(claims, self._blocked):
            return refused
        return self._probe_here(claims[0]) if is_here else self._probe(claims[0])

    def _remedy(self, name: str) -> str:
        """Return what to do about a name that no backend has."""
        if "," in name:
            return "pass several backends as a list, or with one `-b` each on the command line"
        known = did_you_mean(name, self.names())
        if known.startswith("did you mean") or not NAME.fullmatch(name):
            return known
        return f"{known}; if a package such as delegate-{name} provides it, install that package"

    def probe_all(self) -> None:
        """Probe all plugins whose state is unknown, several at a time."""
        plugins = [
            claims[0]
            for name, claims in self._plugins.items()
            if name not in self._states and not BackendState.refused(claims, self._blocked)
        ]
        with contextlib.suppress(OSError):  # else they are probed one by one, in this process
            answers = self._prober.ask_all({plugin: [plugin.value] for plugin in plugins}, "probe")
            found = dict(zip(plugins, answers, strict=True))
            for plugin in sorted(plugins, key=lambda p: "alias" in found[p].data):  # after the backends of the alias
                self._states[plugin.name] = self._state_of_answer(plugin, found[plugin])

    def probe_again(self, name: str) -> BackendState:
        """Probe a plugin without the cache."""
        self._states[name] = self._probe(self._plugins[name][0], refresh=True)
        return self._states[name]

    def mark_broken(self, name: str, problem: str, error: BaseException | None) -> None:
        """Remember that a part of a backend cannot be used."""
        state = self.find(name)
        self._states[name] = BackendState.broken(Plugin(name, state.owner, state.version, ""), problem, error)

    def ask_part(self, info: BackendInfo, part: str) -> dict[str, Any]:
        """Import the "aot" or the "runtime" part of a plugin in a separate process, and return its answer."""
        (plugin,) = self._plugins[info.name]
        data = self._prober.ask(plugin, part, [getattr(info, part)]).data
        if "problem" in data:
            self._states[info.name] = _describe_failure(plugin, data)
        return data

    def try_use(self, infos: Iterable[BackendInfo]) -> list[tuple[Plugin, dict[str, Any]]]:
        """Create both parts of plugins in separate processes; return the answers. None if no process can be started."""
        plugins = {self._plugins[info.name][0]: info for info in infos}
        if plugins:
            with contextlib.suppress(OSError):
                imports = {plugin: [plugin.value, info.aot, info.runtime] for plugin, info in plugins.items()}
                answers = self._prober.ask_all(imports, "use")
                return [(plugin, answer.data) for plugin, answer in zip(plugins, answers, strict=True)]
        return []

    def other_choices(self) -> set[str]:
        """Return the backends of aliases that the aliases do not stand for here."""
        return {
            other
            for name, alias in self._aliases.items()
            for other in alias.stands_for
            if other != self.find(name).stands_for
        }

    @functools.cached_property
    def _prober(self) -> Prober:
        from delegate.processes.probing import Prober  # a program of this project's own backends does not need it

        return Prober(refresh=self._refresh)

    def _probe(self, plugin: Plugin, *, refresh: bool = False) -> BackendState:
        """Probe a plugin in a separate process, or in this one if no process can be started."""
        with contextlib.suppress(OSError):
            return self._state_of_answer(plugin, self._prober.ask(plugin, "probe", [plugin.value], refresh=refresh))
        return self._probe_here(plugin)

    def _probe_here(self, plugin: Plugin) -> BackendState:
        """Probe a plugin in this process."""
        return self._state_of(probe_plugin(plugin), plugin)

    def _state_of_answer(self, plugin: Plugin, answer: Answer) -> BackendState:
        """Return the state that the answer of a probe describes."""
        if "problem" in answer.data:
            return replace(_describe_failure(plugin, answer.data), kept=answer.cached)
        facts: BackendState | BackendAlias | None = None
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            facts = from_json(answer.data, plugin)
        wrong = BackendState.broken(plugin, "returns an invalid answer when it is probed")
        state = wrong if facts is None else self._state_of(facts, plugin)
        if answer.cached and state.state is PluginState.BROKEN and not isinstance(facts, BackendState):
            return self._probe(plugin, refresh=True)  # the cached answer is of another version, or names no backend
        return replace(state, kept=answer.cached)

    def _state_of(self, facts: BackendState | BackendAlias, plugin: Plugin) -> BackendState:
        """Return a state, or the state of the backend that an alias stands for on this machine."""
        if isinstance(facts, BackendState):
            return facts
        self._aliases[facts.name] = facts
        known = (self._plugins.keys() | self.registered.keys()) - self._aliases.keys()
        states = [self.find(name) for name in facts.stands_for if name in known]
        if not states:
            return BackendState.broken(plugin, f"stands for {facts.stands_for[0]!r}, which is not a backend")
        working = [state for state in reversed(states) if state.state is PluginState.OK]
        best = next((state for state in states if state.is_on_own_device), working[0] if working else states[-1])
        named = replace(
            best,
            name=facts.name,
            owner=plugin.owner,
            version=plugin.version,
            info=best.info and replace(best.info, description=facts.description),
            stands_for=best.stands_for or best.name,
        )
        if working:
            return named
        why = "; ".join(state.detail for state in states)
        return replace(named, detail=f"no backend that {facts.name!r} stands for is available here: {why}")


def _describe_failure(plugin: Plugin, data: Mapping[str, str]) -> BackendState:
    """Return the state of a plugin whose probe failed in a separate process."""
    state = BackendState.broken(plugin, data["problem"], traceback=data["traceback"])
    return replace(state, remedy=state.remedy + "; or run `delegate backends --refresh` to probe it again")
