"""Answers of plugins to probes, on disk. The key holds everything that an answer may depend on."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from delegate.cache.runtime.folder import PLUGINS, VARIABLE, cache_folder, private
from delegate.cache.runtime.store import Entry, Store
from delegate.common.field_checks import amount, mapping
from delegate.plugins import BLOCK_VARIABLE, Plugin

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


class ProbeCache:
    """The cached answer to one question.

    Args:
        plugin: the plugin to query.
        question: a question of `process.ask`.
        paths: what is imported for it, "module:Name" each.
        surroundings: the result of `surroundings`.
    """

    def __init__(self, plugin: Plugin, question: str, paths: Sequence[str], surroundings: tuple[Any, ...]) -> None:
        sources = [tuple(_sources(path.partition(":")[0])) for path in paths]
        key = (_FORMAT, question, tuple(plugin), tuple(paths), surroundings, sources)
        self._key = hashlib.sha256(repr(key).encode(errors="surrogatepass")).hexdigest()
        folder = private(cache_folder())
        self._store = None if folder is None else Store(folder / PLUGINS, _MOST_BYTES)

    def get(self, check: Callable[[dict[str, Any]], object]) -> dict[str, Any] | None:
        """Return the answer; None if there is none, it is too old, or `check` raises an exception for it."""
        if self._store is None:
            return _IN_MEMORY.get(self._key)

        def read(entry: Entry) -> dict[str, Any]:
            answer = dict(mapping(entry.about, "answer"))
            check(answer)
            if abs(time.time() - amount(entry.about, "time")) >= MAX_AGE:
                raise ValueError("it is too old")
            return answer

        return self._store.read(self._key, read)

    def put(self, answer: dict[str, Any]) -> None:
        """Store an answer, or leave it to a later process if the disk rejects it."""
        if self._store is None:
            _IN_MEMORY[self._key] = answer
        else:
            self._store.put(self._key, {"time": time.time(), "answer": answer}, [])


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
