"""Prober: asks plugins, or gives what they said in an earlier process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from delegate.backends.state import check_answer
from delegate.plugins import Plugin
from delegate.probing.probe_cache import Kept, surroundings
from delegate.probing.process import Failed, ask


class Answer(NamedTuple):
    """What a plugin said.

    Args:
        data: what `worker.main` answers; of a process that gave no answer, its "problem" and its "traceback".
        kept: whether it said so in an earlier process.
    """

    data: dict[str, Any]
    kept: bool


class Prober:
    """Puts questions to plugins; surroundings are those of its first question.

    Args:
        refresh: forget what they said earlier.
    """

    def __init__(self, *, refresh: bool = False) -> None:
        self._refresh = refresh

    def ask(self, plugin: Plugin, question: str, module: str, *, anew: bool = False) -> Answer:
        """The answer to a question of `process.ask`.

        Args:
            plugin: that is asked.
            question: "probe", "aot" or "runtime".
            module: the one that answers.
            anew: do not look at what is kept.

        Raises:
            CannotAsk: no process can be started here.
        """
        place = Kept(plugin, question, module, self._surroundings)
        data = None if anew or self._refresh else place.get(partial(check_answer, question=question, plugin=plugin))
        if data is not None:
            return Answer(data, kept=True)
        said = ask(plugin, question)
        data = {"problem": said.problem, "traceback": said.words} if isinstance(said, Failed) else said
        place.put(data)
        return Answer(data, kept=False)

    def probe_all(self, plugins: Sequence[Plugin]) -> list[Answer]:
        """The answers to "probe" of several, as many at a time as there are cores; raises CannotAsk."""
        from concurrent.futures import ThreadPoolExecutor

        self._surroundings  # noqa: B018 - once, before there are threads
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(lambda plugin: self.ask(plugin, "probe", plugin.module), plugins))

    @cached_property
    def _surroundings(self) -> tuple[Any, ...]:
        return surroundings()
