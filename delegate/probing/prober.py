"""Queries of plugins, with cached answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from delegate.backends.state import check_answer
from delegate.cache.runtime.probes import ProbeCache, surroundings
from delegate.plugins import Plugin
from delegate.probing.process import Failed, ask
from delegate.program.cores import cores


class Answer(NamedTuple):
    """An answer of a plugin.

    Args:
        data: the answer of `worker.main`; if the process failed, its "problem" and "traceback".
        cached: true if an earlier process got the answer.
    """

    data: dict[str, Any]
    cached: bool


class Prober:
    """Queries plugins. Its first question determines the surroundings of all its questions.

    Args:
        refresh: ignore cached answers.
    """

    def __init__(self, *, refresh: bool = False) -> None:
        self._refresh = refresh

    def ask(self, plugin: Plugin, question: str, paths: Sequence[str], *, refresh: bool = False) -> Answer:
        """Return the answer to a question of `process.ask`.

        Args:
            plugin: the plugin to query.
            question: "probe", "aot", "runtime" or "use".
            paths: what the process imports, "module:Name" each.
            refresh: ignore the cached answer.

        Raises:
            CannotAsk: no process can be started here.
        """
        cache = ProbeCache(plugin, question, paths, self._surroundings)
        data = None if refresh or self._refresh else cache.get(partial(check_answer, question=question, plugin=plugin))
        if data is not None:
            return Answer(data, cached=True)
        result = ask(plugin, question)
        data = {"problem": result.problem, "traceback": result.words} if isinstance(result, Failed) else result
        cache.put(data)
        return Answer(data, cached=False)

    def ask_all(self, plugins: Mapping[Plugin, Sequence[str]], question: str) -> list[Answer]:
        """Return the answers of several plugins, queried in parallel on all cores.

        Args:
            plugins: the plugins to query -> what their processes import.
            question: "probe" or "use".

        Raises:
            CannotAsk: no process can be started here.
        """
        from concurrent.futures import ThreadPoolExecutor

        self._surroundings  # noqa: B018 - once, before there are threads
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(lambda plugin: self.ask(plugin, question, plugins[plugin]), plugins))

    @cached_property
    def _surroundings(self) -> tuple[Any, ...]:
        return surroundings()
