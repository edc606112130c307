"""Properties that a library's results may depend on besides its input: code, versions, the machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from delegate.program.cores import cores

_COMPILED_SUFFIXES = (".pyc", ".pyo")  # compiled from sources
_SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules"})
_MAX_FILES = 20_000  # of a distribution; a larger one takes too long to check
_CPU = ("model name", "flags", "Features", "CPU implementer", "CPU part")  # lines of Linux's /proc/cpuinfo


@functools.cache
def host_features() -> str:
    """Return this machine as compilers see it: system, architecture, instruction sets, cores of this process."""
    words = (platform.system(), platform.machine(), platform.processor(), str(cores()))
    return "; ".join((*words, *_cpu()))


@functools.cache
def _cpu() -> tuple[str, ...]:
    """Return sorted lines about the processor, such as "model name : ..."."""
    try:
        lines = {line.strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(_CPU)}
    except (OSError, UnicodeDecodeError):
        lines = {os.environ.get("PROCESSOR_IDENTIFIER", "")}
    return tuple(sorted(lines))


def machine() -> str:
    """Return this machine in a few words: system, architecture, CPU, cores of this process."""
    model = next((line.partition(":")[2].strip() for line in _cpu() if line.startswith("model name")), "")
    parts = (platform.system(), platform.machine(), model, f"{cores()} cores")
    return ", ".join(part for part in parts if part)


@functools.cache
def code_of(package: str) -> str | None:
    """Return a digest of the names, sizes and times of all files of a package or module, data files included.

    Return None if it has no file, as for code typed into an interpreter.
    """
    return _digest(_files(package))


@functools.cache
def files_of(distribution: str) -> str | None:
    """Return a digest of all files of a distribution; of an editable one, of all files in its project folder.

    Return None if there are too many files, or the metadata is damaged.
    """
    from importlib import metadata

    try:
        installed_distribution = metadata.distribution(distribution)
        installed = [
            str(installed_distribution.locate_file(f))
            for f in installed_distribution.files or ()
            if f.suffix not in _COMPILED_SUFFIXES
        ]
        folder = _project(installed_distribution.read_text("direct_url.json"))
    except metadata.PackageNotFoundError:
        return ""
    except Exception:  # of a parser: anything may be in another author's files
        return None
    paths = list(itertools.islice(itertools.chain(installed, _within(folder) if folder else ()), _MAX_FILES + 1))
    return None if len(paths) > _MAX_FILES else _digest(paths) or ""


def _digest(paths: Iterable[str]) -> str | None:
    lines = []
    for path in sorted(paths):
        with contextlib.suppress(OSError, ValueError):  # it is absent, or no file can have this name
            status = os.stat(path)
            lines.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest() if lines else None


def _files(package: str) -> Iterator[str]:
    module = sys.modules.get(package)
    if package == "__main__" or module is None:
        return
    folders = list(getattr(module, "__path__", ()))
    if not folders and (file := getattr(module, "__file__", None)):
        yield file
    for folder in folders:
        yield from _within(folder)


def _within(folder: str) -> Iterator[str]:
    """Yield the files in a folder, except hidden files, build outputs and virtual environments."""
    for place, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = [
            f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith(".") and ".egg-info" not in f
        ]
        yield from (os.path.join(place, name) for name in names if not name.endswith(_COMPILED_SUFFIXES))


def _project(direct_url: str | None) -> str | None:
    """Return the folder of a distribution that is installed in place (PEP 610)."""
    from urllib.parse import urlparse
    from urllib.request import url2pathname

    try:
        info = json.loads(direct_url or "{}")
        url = urlparse(info["url"])
        return url2pathname(url.path) if url.scheme == "file" and info["dir_info"]["editable"] else None
    except (ValueError, KeyError, TypeError):
        return None


@functools.cache
def versions_of(distribution: str) -> tuple[str, ...]:
    """Return a distribution and its installed requirements, extras included, with their versions."""
    from importlib import metadata

    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return ()
    except Exception:  # of a parser: anything may be in another author's files
        requirements = []
    versions = {}
    for line in (distribution, *requirements):
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        with contextlib.suppress(Exception):  # it is not installed, or its metadata is damaged
            versions[re.sub(r"[-_.]+", "_", name).lower()] = metadata.version(name)
    return tuple(sorted(f"{name} {version}" for name, version in versions.items()))
