"""What the work of a library may depend on besides what it is given: code, versions, the machine."""

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

_NO_CODE = (".pyc", ".pyo")  # made of what is there
_NO_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules"})
_MOST_FILES = 20_000  # of a distribution; of one that has more, nobody can tell in time
_CPU = ("model name", "flags", "Features", "CPU implementer", "CPU part")  # lines of Linux's /proc/cpuinfo


@functools.cache
def host_features() -> str:
    """This machine as compilers see it: system, architecture, the CPU with its instruction sets, its cores."""
    words = (platform.system(), platform.machine(), platform.processor(), str(os.cpu_count()))
    return "; ".join((*words, *_cpu()))


@functools.cache
def _cpu() -> tuple[str, ...]:
    """The processor in lines, in order, such as "model name : ..."."""
    try:
        lines = {line.strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(_CPU)}
    except (OSError, UnicodeDecodeError):
        lines = {os.environ.get("PROCESSOR_IDENTIFIER", "")}
    return tuple(sorted(lines))


def machine() -> str:
    """This machine in a few words: system, architecture, CPU, cores."""
    model = next((line.partition(":")[2].strip() for line in _cpu() if line.startswith("model name")), "")
    parts = (platform.system(), platform.machine(), model, f"{os.cpu_count()} cores")
    return ", ".join(part for part in parts if part)


@functools.cache
def code_of(package: str) -> str | None:
    """A digest that changes with the files of a package or module, data among them, by names, sizes and times.

    None where it has no file, as what is typed into an interpreter.
    """
    return _digest(_files(package))


@functools.cache
def files_of(distribution: str) -> str | None:
    """The same of all files of a distribution; of one that is installed in place, of all in its project's folder.

    None where it has too many.
    """
    from importlib import metadata

    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return ""
    installed = (str(found.locate_file(f)) for f in found.files or () if f.suffix not in _NO_CODE)
    folder = _project(found.read_text("direct_url.json"))
    paths = list(itertools.islice(itertools.chain(installed, _within(folder) if folder else ()), _MOST_FILES + 1))
    return None if len(paths) > _MOST_FILES else _digest(paths) or ""


def _digest(paths: Iterable[str]) -> str | None:
    lines = []
    for path in sorted(paths):
        with contextlib.suppress(FileNotFoundError):
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
    """The files in a folder, but for hidden ones, what is built there, and virtual environments."""
    for place, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = [f for f in folders if f not in _NO_FOLDERS and not f.startswith(".") and ".egg-info" not in f]
        yield from (os.path.join(place, name) for name in names if not name.endswith(_NO_CODE))


def _project(direct_url: str | None) -> str | None:
    """The folder of a distribution that is installed in place (PEP 610)."""
    from urllib.parse import urlparse
    from urllib.request import url2pathname

    try:
        found = json.loads(direct_url or "{}")
        url = urlparse(found["url"])
        return url2pathname(url.path) if url.scheme == "file" and found["dir_info"]["editable"] else None
    except (ValueError, KeyError, TypeError):
        return None


@functools.cache
def versions_of(distribution: str) -> tuple[str, ...]:
    """A distribution and those that it asks for, extras included, with their versions, as far as they are installed."""
    from importlib import metadata

    try:
        asked = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return ()
    names = {_normal(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in (distribution, *asked)}
    return tuple(sorted(f"{name} {version}" for name, version in _installed().items() if name in names))


def _installed() -> dict[str, str]:
    """Name -> version of every distribution; of several of a name, the first on `sys.path`."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:  # a folder of sys.path need not exist
            continue
        for name, _, rest in (n.partition("-") for n in names if n.endswith((".dist-info", ".egg-info"))):
            found.setdefault(_normal(name), rest)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
