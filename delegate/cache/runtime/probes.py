"""Answers of plugins to probes, on disk. The key holds everything that an answer may depend on."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from delegate.cache.runtime.folder import PLUGINS, VARIABLE, BoundedFolder, cache_folder, make_private, private
from delegate.common.field_checks import amount, mapping
from delegate.common.files import open_nonblocking
from delegate.plugins import BLOCK_VARIABLE, Plugin

MAX_AGE = 24 * 3600.0  # seconds: devices and drivers come and go without a new version of any distribution
_MAX_FILES = 500
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


class ProbeFiles(BoundedFolder):
    """The answers of all plugins, one file for each."""

    suffix = ".json"


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
        name = hashlib.sha256(repr(key).encode(errors="surrogatepass")).hexdigest()
        folder = private(cache_folder())
        self._name = name[:40]
        self._file = None if folder is None else folder / PLUGINS / f"{self._name}{ProbeFiles.suffix}"

    def get(self, check: Callable[[dict[str, Any]], object]) -> dict[str, Any] | None:
        """Return the answer; None if there is none, it is too old, or `check` raises an exception for it."""
        if self._file is None:
            return _IN_MEMORY.get(self._name)
        try:
            with open(self._file, "rb", opener=open_nonblocking) as file:
                data = json.loads(file.read())
            answer = dict(mapping(data, "answer"))
            check(answer)
            return answer if abs(time.time() - amount(data, "time")) < MAX_AGE else None
        except FileNotFoundError:
            return None
        except Exception:  # an entry that makes no sense, in whatever way
            with contextlib.suppress(OSError):
                self._file.unlink()
            return None

    def put(self, answer: dict[str, Any]) -> None:
        """Store an answer, or leave it to a later process if the disk rejects it."""
        if self._file is None:
            _IN_MEMORY[self._name] = answer
            return
        folder = self._file.parent
        with contextlib.suppress(OSError):
            make_private(folder)
            _evict(folder)
            descriptor, name = tempfile.mkstemp(dir=folder, suffix=".new")
            try:
                with open(descriptor, "w", encoding="utf-8") as file:
                    json.dump({"time": time.time(), "answer": answer}, file)
                os.replace(name, self._file)
            except BaseException:
                os.unlink(name)
                raise


def _evict(folder: Path) -> None:
    """Delete the oldest answers if there are too many."""
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
    for file in files[: max(0, len(files) - _MAX_FILES)]:
        file.unlink(missing_ok=True)


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
