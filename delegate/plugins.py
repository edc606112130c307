"""Plugins of installed distributions, discovered by entry point and listed without importing them.

Entry points are read without `importlib.metadata` if possible. That module imports the email and zip packages, which
takes longer than loading a whole program. So the plain directories of `sys.path` are read here. `importlib.metadata` is
used if something else, such as an archive or an import hook, may hold distributions. The layout is PyPA's:
https://packaging.python.org/specifications/entry-points/
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from delegate.interrupts import interruptible

OWN = "delegate"  # the distribution of this project; others cannot claim the names of its plugins
PORTABLE = "portable"  # the project's own kernel library: the last by preference, never blocked; a place for nodes
AUTHOR = "report it to the backend's author"  # the remedy for a fault of a plugin
# The groups of entry points: backends, kernel libraries, ways to measure, and commands of `delegate`.
BACKENDS, KERNELS = "delegate.backends", "delegate.kernels"
MEASUREMENTS, COMMANDS = "delegate.measurements", "delegate.commands"
NAME = re.compile(r"\w[\w.-]*")  # what backends and instances may be named
BLOCK_VARIABLE = "DELEGATE_BLOCK_PLUGINS"  # environment variable: names separated by commas, or "*" for all


# Separates the name of a backend from that of an instance with other options, e.g. "xnnpack:small".
INSTANCE = ":"

_SUFFIXES = (".dist-info", ".egg-info")  # of metadata folders
_FILE = "entry_points.txt"


class PluginState(StrEnum):
    """The state of a plugin on this machine."""

    OK = "ok"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"
    UNAVAILABLE = "unavailable"
    BLOCKED = "blocked"


class Plugin(NamedTuple):
    """An entry point, not imported.

    Args:
        name: of the entry point.
        owner, version: the distribution that declares it.
        value: what `load` imports, e.g. "package.module:NAME".
    """

    name: str
    owner: str
    version: str
    value: str

    @property
    def label(self) -> str:
        """The distribution for messages, e.g. "acme-npu 1.2"."""
        return f"{self.owner} {self.version}".strip()

    @property
    def module(self) -> str:
        """The module that `load` imports."""
        return self.value.partition(":")[0]

    def load(self) -> object:
        """Import the object of the entry point; raises all errors of that import."""
        return load_object(self.value)


class Discovered(NamedTuple):
    """The plugins of an entry-point group.

    Args:
        claims: by name in alphabetical order; several where distributions claim one name.
        refused: those that claim a name of this project's own plugins, which stay.
    """

    claims: dict[str, tuple[Plugin, ...]]
    refused: tuple[Plugin, ...]


def discover(group: str) -> Discovered:
    """Return the plugins of an entry-point group.

    A distribution that is seen twice on `sys.path` (an editable install next to its build metadata) counts once.
    """
    claims: dict[str, dict[str, Plugin]] = {}
    for entry in entry_points(group):
        key = entry.owner.lower().replace("-", "_").replace(".", "_")
        plugin = Plugin(entry.name, entry.owner, entry.version, entry.value)
        claims.setdefault(entry.name, {}).setdefault(key, plugin)
    own = {name: plugins[OWN] for name, plugins in claims.items() if OWN in plugins}
    counting = {name: (own[name],) if name in own else tuple(claims[name].values()) for name in sorted(claims)}
    return Discovered(counting, tuple(p for name in own for p in claims[name].values() if p is not own[name]))


def refusal(plugin: Plugin, what: str) -> str:
    """Describe the refusal of a plugin that claims one of this project's own names; `what` is the kind of plugin."""
    return (
        f"{plugin.label} provides the {what} {plugin.name!r}, which is built into {OWN} and cannot be replaced: "
        f"uninstall {plugin.owner}"
    )


def misnamed(plugin: Plugin, name: object) -> str:
    """Describe the fault of a plugin whose object has another name than its entry point; "it" is the subject."""
    return f"has the name {name!r}, but its entry point is {plugin.name!r}: both must be the same"


def other_version(version: tuple[int, int], ours: tuple[int, int], owner: str, of: str) -> tuple[str, str]:
    """Return what is wrong with the version that a plugin was written for, and the remedy; both empty if it fits.

    Args:
        version, ours: (major, minor) of the plugin and of this project. A newer minor version does not fit, either.
        owner: the distribution of the plugin.
        of: what has the versions, e.g. "the plugin API".
    """
    if version[0] == ours[0] and version[1] <= ours[1]:
        return "", ""
    written = (
        f"is written for version {version[0]}.{version[1]} of {of}, but this project has version {ours[0]}.{ours[1]}"
    )
    return written, f"update {owner if version < ours else 'delegate'}"


def blocked_names() -> frozenset[str]:
    """Return the plugin names that the environment variable DELEGATE_BLOCK_PLUGINS blocks."""
    return frozenset(part.strip() for part in os.environ.get(BLOCK_VARIABLE, "").split(",") if part.strip())


def blocked_in_vain(name: str, matches: Collection[str]) -> str:
    """Describe a blocked name that is no plugin here; `matches` are plugins of similar names."""
    meant = f": did you mean {' or '.join(map(repr, matches))}?" if matches else ""
    return f"the environment variable {BLOCK_VARIABLE} names {name!r}, which is not an installed plugin{meant}"


def is_blocked(name: str, blocked: Collection[str]) -> bool:
    """Return if plugins of a name are blocked; names are compared without case."""
    return "*" in blocked or name.casefold() in map(str.casefold, blocked)


def backend_of(name: str) -> str:
    """Return the backend of an instance name: "xnnpack" of "xnnpack:small"; other names unchanged."""
    backend, _, own = name.partition(INSTANCE)
    return backend if NAME.fullmatch(own) else name


def in_known_spelling(name: str, known: Iterable[str]) -> str:
    """Return the known name that is equal to a name without case; unknown names unchanged.

    >>> in_known_spelling("XNNPACK", ["dsp", "xnnpack"])
    'xnnpack'
    """
    names = tuple(known)
    return name if name in names else next((k for k in names if k.casefold() == name.casefold()), name)


def load_object(path: str) -> object:
    """Import "package.module:Name"; raises ValueError for another form, and all errors of the import."""
    module, separator, name = path.partition(":")
    if not (module and separator and name):
        raise ValueError(f"{path!r} is not of the form 'package.module:Class'")
    with interruptible():
        return getattr(importlib.import_module(module), name)


def first_line(error: BaseException) -> str:
    """Return the type and the first line of an exception, e.g. "RuntimeError: sizes do not match"."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def one_line(error: BaseException) -> str:
    """Return an exception on one line, e.g. "ImportError: no module named x"."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an exception may be impossible to print
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def full_traceback(error: BaseException | None) -> str:
    """Return the traceback as Python prints it; empty for None."""
    import traceback  # a broken plugin is rare

    return "".join(traceback.format_exception(error)) if error else ""


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
