"""The entry points of installed distributions, read without `importlib.metadata` if possible.

That module imports the email and zip packages, which takes longer than loading a whole program. So the plain
directories of `sys.path` are read here. `importlib.metadata` is used if something else, such as an archive or an import
hook, may hold distributions. The layout is PyPA's: https://packaging.python.org/specifications/entry-points/
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

_SUFFIXES = (".dist-info", ".egg-info")
_FILE = "entry_points.txt"


class EntryPoint(NamedTuple):
    """An entry point of a distribution.

    Args:
        name, value: e.g. "xnnpack" and "package.module:NAME".
        owner, version: the distribution that declares it.
    """

    name: str
    value: str
    owner: str
    version: str


def entry_points(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points of a group; as in `importlib.metadata`, the first of equal distributions counts."""
    if not _only_directories():
        yield from _of_library(group)
        return
    seen: set[str] = set()
    for folder in sys.path:
        for path in distributions(folder or "."):
            key = os.path.basename(path).lower().rsplit(".", 1)[0].partition("-")[0].replace(".", "_")
            if key not in seen:
                seen.add(key)
                yield from _of_distribution(path, group)


def _only_directories() -> bool:
    """Return if only directories of `sys.path` can hold distributions."""
    hooks = [
        f for f in sys.meta_path if hasattr(f, "find_distributions") and getattr(f, "__name__", "") != "PathFinder"
    ]
    return not hooks and not any(os.path.isfile(folder) and not folder.endswith(".pth") for folder in sys.path)


def distributions(folder: str) -> list[str]:
    """Return the metadata folders in a folder of `sys.path`."""
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(_SUFFIXES)]
    except OSError:  # a folder of sys.path need not exist
        return []


def _of_distribution(path: str, group: str) -> Iterator[EntryPoint]:
    try:
        with open(os.path.join(path, _FILE), encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return
    if f"[{group}]" not in text:
        return
    owner, version = _name_and_version(path)
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield EntryPoint(name.strip(), value.partition("[")[0].strip(), owner, version)


def _name_and_version(path: str) -> tuple[str, str]:
    for file in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(path, file), encoding="utf-8") as lines:
                header = takewhile(str.strip, lines)  # up to the empty line that ends it
                fields = dict(line.strip().split(": ", 1) for line in header if ": " in line)
                return fields["Name"], fields.get("Version", "")
        except (OSError, KeyError, UnicodeDecodeError):
            continue
    return os.path.basename(path).partition("-")[0], ""


def _of_library(group: str) -> Iterator[EntryPoint]:
    import importlib.metadata

    for entry in importlib.metadata.entry_points(group=group):
        owner = entry.dist.name if entry.dist else "unknown distribution"
        yield EntryPoint(entry.name, entry.value, owner, entry.dist.version if entry.dist else "")
