"""Questions to plugins, each in a separate process with a time limit, and a cache of the answers on disk.

A plugin is foreign code that imports its vendor's library: it may crash or hang. So a plugin that the user did not name
runs in a separate process. Its answer is cached until something that it may depend on changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from delegate.backend.info import BackendInfo
from delegate.backend.state import load_part, probe_plugin, schema_of, to_json
from delegate.cache.runtime.folder import PLUGINS, VARIABLE, cache_folder, private
from delegate.cache.runtime.store import Entry, Store
from delegate.common.field_checks import amount, mapping
from delegate.errors import BackendUnavailable
from delegate.plugins import BLOCK_VARIABLE, Plugin, UnusablePlugin, full_traceback, load_object, one_line
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

MAX_AGE = 24 * 3600.0  # seconds: devices and drivers come and go without a new version of any distribution
_MOST_BYTES = 4 * 2**20
_FORMAT = 2  # of the answers
# These do not affect a library: the session, the terminal, and variables of tests and of this project.
_IGNORED = frozenset({
    "_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "WINDOWID", "TMUX", "TMUX_PANE", "STY", "LS_COLORS",
    "COLORTERM", "HISTFILE", "PS1", "INVOCATION_ID", "JOURNAL_STREAM", "DELEGATE_VERIFY_PASSES", BLOCK_VARIABLE,
    VARIABLE,
})  # fmt: skip
_IGNORED_PREFIXES = ("SSH_", "PYTEST_", "TERM_", "VSCODE_", "GIT_", "JPY_", "XDG_SESSION_")
_USAGE_DATA = ("TELEMETRY", "USAGE_STATS")  # variables that `delegate.usage_data.opt_out` sets in some processes
_IN_MEMORY: dict[str, dict[str, Any]] = {}  # answers if the cache on disk is off


class Answer(NamedTuple):
    """An answer of a plugin.

    Args:
        data: what `_answer` returns; if the process ended, its "problem" and "traceback".
        cached: true if an earlier process got the answer.
    """

    data: dict[str, Any]
    cached: bool


class Prober:
    """Queries plugins, and caches the answers. Its first question determines the surroundings of all its questions.

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
            OSError: no process can be started here.
        """
        sources = [tuple(_sources(path.partition(":")[0])) for path in paths]
        key_parts = (_FORMAT, question, tuple(plugin), tuple(paths), self._surroundings, sources)
        key = hashlib.sha256(repr(key_parts).encode(errors="surrogatepass")).hexdigest()
        if not (refresh or self._refresh):
            cached = _IN_MEMORY.get(key) if self._store is None else self._store.read(key, _read_answer)
            if cached is not None:
                return Answer(cached, cached=True)
        data = _ask(plugin, question)
        if self._store is None:
            _IN_MEMORY[key] = data
        else:
            self._store.put(key, {"time": time.time(), "answer": data}, [])
        return Answer(data, cached=False)

    def ask_all(self, plugins: Mapping[Plugin, Sequence[str]], question: str) -> list[Answer]:
        """Return the answers of several plugins, queried in parallel on all cores.

        Args:
            plugins: the plugins to query -> what their processes import.
            question: "probe" or "use".

        Raises:
            OSError: no process can be started here.
        """
        from concurrent.futures import ThreadPoolExecutor

        self._surroundings, self._store  # noqa: B018 - once, before there are threads
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(lambda plugin: self.ask(plugin, question, plugins[plugin]), plugins))

    @cached_property
    def _surroundings(self) -> tuple[Any, ...]:
        return surroundings()

    @cached_property
    def _store(self) -> Store | None:
        folder = private(cache_folder())
        return None if folder is None else Store(folder / PLUGINS, _MOST_BYTES)


def _read_answer(entry: Entry) -> dict[str, Any]:
    """Return the answer in a cache entry; raises ValueError if it is too old."""
    if abs(time.time() - amount(entry.about, "time")) >= MAX_AGE:
        raise ValueError("it is too old")
    return dict(mapping(entry.about, "answer"))


def _ask(plugin: Plugin, question: str) -> dict[str, Any]:
    process = Process(f"{__name__}:questions", is_quiet=True)
    try:
        if question == "use":
            process.ask("import torch", limit=AOT_LIMIT)
        answer = process.ask(question, plugin, limit=LIMITS[question])
        if not isinstance(answer, dict):
            raise process.reject_answer()
        return answer
    except ProcessEnded as end:
        if not end.has_started:
            raise ChildProcessError(end.ending) from end
        return {"problem": f"{end.ending} {_ACTIVITY[question]}", "traceback": end.output}
    finally:
        process.end()


def questions() -> Questions:
    """Return the questions to a plugin. Their message is the fields of the Plugin."""
    return {
        "import torch": lambda *_: load_object("delegate.backend.aot:Backend") and None,
        "probe": lambda fields, _: to_json(probe_plugin(Plugin(*fields))),
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


def surroundings() -> tuple[Any, ...]:
    """Return everything any answer may depend on: Python, the path, versions of all distributions, the environment."""
    path = [os.path.abspath(folder) for folder in sys.path]
    installed = [name for folder in path for name in (folder, *_distributions(folder))]
    environment = [
        (k, v)
        for k, v in sorted(os.environ.items())
        if not (k in _IGNORED or k.startswith(_IGNORED_PREFIXES) or any(part in k for part in _USAGE_DATA))
    ]
    return sys.version, platform.node(), tuple(installed), tuple(environment)


def _distributions(folder: str) -> list[str]:
    """Return the names of the metadata folders in a folder, which include versions."""
    with contextlib.suppress(OSError):  # a folder of sys.path need not exist
        return sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info")))
    return []


def _sources(module: str) -> Iterator[tuple[str, int, int]]:
    """Yield the Python files next to a module with their times, so an edited plugin is queried again."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)  # of a package that is not inside another: imports nothing
    except (ImportError, ValueError):
        return
    if spec is None or spec.origin is None:
        return
    if spec.submodule_search_locations:
        folder = os.path.join(os.path.dirname(spec.origin), *inner[:-1])
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            yield from sorted(
                (e.path, (s := e.stat()).st_mtime_ns, s.st_size) for e in entries if e.name.endswith(".py")
            )
        return
    with contextlib.suppress(OSError):
        status = os.stat(spec.origin)
        yield spec.origin, status.st_mtime_ns, status.st_size
