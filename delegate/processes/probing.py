"""Questions to plugins, each in a separate process with a time limit, and a cache of the answers on disk.

A plugin is foreign code that imports its vendor's library: it may crash or hang. So a plugin that the user did not name
runs in a separate process. Its answer is cached (`cache/runtime/probes.py`) until something that it may depend on
changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from delegate.backend.info import BackendInfo
from delegate.backend.state import check_answer, found, load_part, schema_of, to_json
from delegate.cache.runtime.probes import ProbeCache, surroundings
from delegate.errors import BackendUnavailable
from delegate.plugins import Plugin, UnusablePlugin, full_traceback, load_object, one_line
from delegate.processes.answering import Questions
from delegate.processes.limits import AOT_LIMIT, UNNAMED_LIMIT
from delegate.processes.process import Process, ProcessEnded
from delegate.program.cores import cores

# Seconds per question; the AOT part imports torch. For "use" the time begins after that import.
LIMITS = {"probe": UNNAMED_LIMIT, "aot": AOT_LIMIT, "runtime": UNNAMED_LIMIT, "use": UNNAMED_LIMIT}
_ACTIVITY = {
    "probe": "while probed",
    "aot": "while its AOT part was imported",
    "runtime": "while its runtime part was",
    "use": "while its parts were imported and created",
}


class CannotAsk(Exception):
    """No process can be started here."""


class Answer(NamedTuple):
    """An answer of a plugin.

    Args:
        data: what `_answer` returns; if the process ended, its "problem" and "traceback".
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
        """Return the answer to a question.

        Args:
            plugin: the plugin to query.
            question: "probe", "use", or a part to import: "aot" or "runtime".
            paths: what the process imports, "module:Name" each.
            refresh: ignore the cached answer.

        Raises:
            CannotAsk: no process can be started here.
        """
        cache = ProbeCache(plugin, question, paths, self._surroundings)
        data = None if refresh or self._refresh else cache.get(partial(check_answer, question=question, plugin=plugin))
        if data is not None:
            return Answer(data, cached=True)
        data = _ask(plugin, question)
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


def _ask(plugin: Plugin, question: str) -> dict[str, Any]:
    try:
        process = Process(f"{__name__}:questions", is_quiet=True)
    except OSError as error:
        raise CannotAsk(str(error)) from error
    try:
        if question == "use":
            process.ask("import torch", limit=AOT_LIMIT)
        answer = process.ask(question, plugin, limit=LIMITS[question])
        if not isinstance(answer, dict):
            raise process.reject_answer()
        return answer
    except ProcessEnded as end:
        if not end.has_started:
            raise CannotAsk(end.ending) from end
        return {"problem": f"{end.ending} {_ACTIVITY[question]}", "traceback": end.output}
    finally:
        process.end()


def questions() -> Questions:
    """Return the questions to a plugin. Their message is the fields of the Plugin."""
    return {
        "import torch": lambda *_: load_object("delegate.backend.aot:Backend") and None,
        "probe": lambda fields, _: to_json(found(Plugin(*fields))),
        **{question: partial(_answer, question) for question in ("aot", "runtime", "use")},
    }


def _answer(question: str, fields: Sequence[str], _: Sequence[int]) -> dict[str, Any]:
    """Return the answer to a question about parts, or the problem of a part."""
    try:
        info = load_object(Plugin(*fields).value)
        assert isinstance(info, BackendInfo)
        return _use(info) if question == "use" else _load_part(info, question)
    except BackendUnavailable as error:
        return {"absent": error.what, "remedy": error.remedy}
    except UnusablePlugin as error:
        return {"problem": str(error), "traceback": full_traceback(error.__cause__)}
    except (Exception, SystemExit) as error:
        what = "fails with its default options" if question == "use" else "has options without a schema"
        return {"problem": f"{what}: {one_line(error)}", "traceback": full_traceback(error)}


def _load_part(info: BackendInfo, name: str) -> dict[str, Any]:
    """Import a part; return the JSON schema of an AOT part's options."""
    part = load_part(info, name)
    return {"options": schema_of(part)} if name == "aot" else {}


def _use(info: BackendInfo) -> dict[str, Any]:
    """Import both parts, create them, and read what lowering reads of the AOT part before it has a graph."""
    aot: Any = load_part(info, "aot")
    schema_of(aot)
    part = aot(aot.Options())
    _ = part.preserve_ops, part.most_constants, part.check_uses_library, part.cache_key(), part.quantization()
    load_part(info, "runtime")()
    return {}
