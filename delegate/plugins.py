"""Plugins as installed distributions declare them: found by entry point, listed without being imported."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BLOCK_VARIABLE = "DELEGATE_BLOCK_PLUGINS"  # environment variable: names separated by commas, or "*" for all


class State(StrEnum):
    """What can be done with a plugin on this machine."""

    OK = "ok"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"
    UNAVAILABLE = "unavailable"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point, not imported.

    Args:
        name: of the entry point.
        owner, version: the distribution that declares it.
        entry: what `load` imports.
    """

    name: str
    owner: str
    version: str
    entry: EntryPoint

    @property
    def label(self) -> str:
        """The distribution for messages, e.g. "acme-npu 1.2"."""
        return f"{self.owner} {self.version}".strip()

    def load(self) -> object:
        """Import what the entry point names; raises whatever that import raises."""
        return self.entry.load()


def discover(group: str) -> dict[str, tuple[Plugin, ...]]:
    """All plugins of an entry-point group by name, in alphabetical order; several where distributions claim one name.

    A distribution that is seen twice on `sys.path` (an editable install next to its build metadata) counts once.
    """
    import importlib.metadata  # takes as long as all of a small program's load, so only when it is needed

    claims: dict[str, dict[str, Plugin]] = {}
    for entry in importlib.metadata.entry_points(group=group):
        owner = entry.dist.name if entry.dist else "unknown distribution"
        version = entry.dist.version if entry.dist else ""
        key = owner.lower().replace("-", "_").replace(".", "_")
        claims.setdefault(entry.name, {}).setdefault(key, Plugin(entry.name, owner, version, entry))
    return {name: tuple(claims[name].values()) for name in sorted(claims)}


def blocked_names(environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """The names that the environment variable DELEGATE_BLOCK_PLUGINS keeps from being loaded."""
    value = (os.environ if environment is None else environment).get(BLOCK_VARIABLE, "")
    return frozenset(part.strip() for part in value.split(",") if part.strip())


def is_blocked(name: str, blocked: Collection[str]) -> bool:
    """Whether a plugin of that name is blocked."""
    return name in blocked or "*" in blocked


def load_object(path: str) -> object:
    """Import "package.module:Name"; raises ValueError for another form, and whatever the import raises."""
    module, separator, name = path.partition(":")
    if not (module and separator and name):
        raise ValueError(f"{path!r} is not of the form 'package.module:Class'")
    return getattr(importlib.import_module(module), name)


def first_line(error: BaseException) -> str:
    """The first line of an exception of many, e.g. "RuntimeError: sizes do not match"."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def one_line(error: BaseException) -> str:
    """An exception on one line, e.g. "ImportError: no module named x"."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # of an exception that cannot be printed, its name is told
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def full_traceback(error: BaseException | None) -> str:
    """The traceback as Python prints it; empty for None."""
    return "".join(traceback.format_exception(error)) if error else ""
