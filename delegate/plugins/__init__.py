"""Plugins of installed distributions: discovered by entry point without importing them, and the state of each."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from delegate.errors import ConfigError, DelegateError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

OWN = "delegate"  # the distribution of this project; others cannot claim the names of its plugins
PORTABLE = "portable"  # the project's own kernel library: the last by preference, never blocked; a place for nodes
AUTHOR = "report it to the backend's author"  # the remedy for a fault of a plugin
# The groups of entry points: backends, kernel libraries, ways to measure, commands of `delegate`, and what developers
# look into programs with.
BACKENDS, KERNELS = "delegate.backends", "delegate.kernels"
MEASUREMENTS, COMMANDS, DEBUGGERS = "delegate.measurements", "delegate.commands", "delegate.debuggers"
NAME = re.compile(r"\w[\w.-]*")  # what backends and instances may be named
BLOCK_VARIABLE = "DELEGATE_BLOCK_PLUGINS"  # environment variable: names separated by commas, or "*" for all
IN_PROCESS = "this process"  # the owner of a plugin that no distribution declares
API_VERSION = (1, 0)  # (major, minor); a plugin that is written for another is incompatible

# Separates the name of a backend from that of an instance with other options, e.g. "xnnpack:small".
INSTANCE = ":"


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
        name: The entry point's name.
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


class UnusablePlugin(Exception):
    """An imported plugin is not what its entry point promises: "it ", and the message."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin as it is installed on this machine; each kind of plugin is a subclass.

    Args:
        name: the name that users write.
        state: ok, broken, incompatible, unavailable or blocked.
        owner, version: the distribution that declares it; several owners are joined by " and ".
        detail: one sentence with the reason if it is not ok; else empty, or a note.
        remedy: how to fix that.
        traceback: the traceback of a broken plugin; else empty.
        error: the exception of a broken plugin that was imported in this process.
    """

    noun: ClassVar[str] = "plugin"  # the kind, in messages

    name: str
    state: PluginState
    owner: str
    version: str
    detail: str = ""
    remedy: str = ""
    traceback: str = field(default="", repr=False, compare=False)
    error: BaseException | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, plugin: Plugin, state: PluginState = PluginState.OK, **fields: Any) -> Self:
        """Return a plugin in a state, with the other fields of the kind."""
        return cls(plugin.name, state, plugin.owner, plugin.version, **fields)

    @classmethod
    def broken(cls, plugin: Plugin, problem: str, error: BaseException | None = None, traceback: str = "") -> Self:
        """Return a plugin that is broken: "it " and the problem."""
        return cls.of(
            plugin,
            PluginState.BROKEN,
            detail=f"{cls.noun} {plugin.name!r} of {plugin.label} is broken: it {problem}",
            remedy="fix it" if plugin.owner == IN_PROCESS else f"update or uninstall {plugin.owner}",
            traceback=traceback or full_traceback(error),
            error=error,
        )

    @classmethod
    def other_version(cls, plugin: Plugin, version: tuple[int, int], **fields: Any) -> Self | None:
        """Return a plugin that is written for a version of the plugin API, if that is not this project's."""
        if version == API_VERSION:
            return None
        (major, minor), (ours, own_minor) = version, API_VERSION
        written = f"is written for version {major}.{minor} of the plugin API, but this project has version"
        return cls.of(
            plugin,
            PluginState.INCOMPATIBLE,
            detail=f"{cls.noun} {plugin.name!r} of {plugin.owner} {written} {ours}.{own_minor}",
            remedy=f"update {plugin.owner if version < API_VERSION else OWN}",
            **fields,
        )

    @classmethod
    def refused(cls, claims: Collection[Plugin], blocked: Collection[str]) -> Self | None:
        """Return the plugin of a name if it must not be imported: it is blocked, or several distributions provide it.

        Args:
            claims: the plugins of one name.
            blocked: patterns of names that must not be used.
        """
        plugin, *others = claims
        if is_blocked(plugin.name, blocked):
            detail = f"{cls.noun} {plugin.name!r} is blocked by the environment variable {BLOCK_VARIABLE}"
            plugin = plugin._replace(owner=" and ".join(p.owner for p in claims))
            return cls.of(plugin, PluginState.BLOCKED, detail=detail, remedy="remove it from this variable")
        if not others:
            return None
        owners = " and ".join(p.label for p in claims)
        detail = f"several distributions provide the {cls.noun} {plugin.name!r}: {owners}"
        plugin = plugin._replace(owner=owners, version="")
        return cls.of(plugin, PluginState.BROKEN, detail=detail, remedy="uninstall all but one of them")

    def require_ok(self, error: type[DelegateError]) -> None:
        """Raise an error with the detail and the remedy if the plugin cannot be used."""
        if self.state is not PluginState.OK:
            raise error(self.detail, remedy=self.remedy) from self.error


def import_plugin(kind: type[InstalledPlugin], plugin: Plugin, *provided: type, name_of: str = "name") -> Any:
    """Import what a plugin provides; return the plugin, broken, if that fails or it provides something else.

    Args:
        kind: the kind of the plugin.
        plugin: the plugin.
        provided: the types that it may provide; none if anything is right, and then its name is not compared.
        name_of: the attribute that must be the plugin's name.
    """
    try:
        value = plugin.load()
    except (Exception, SystemExit) as error:
        return kind.broken(plugin, f"fails to import: {one_line(error)}", error)
    if provided and not isinstance(value, provided):
        what = f"provides {type(value).__name__} at {plugin.value}, not a {provided[0].__name__}"
        return kind.broken(plugin, what)
    if provided and (name := getattr(value, name_of)) != plugin.name:
        what = f"has the name {name!r}, but its entry point is {plugin.name!r}: both must be the same"
        return kind.broken(plugin, what)
    return value


def import_claimed(
    kind: type[InstalledPlugin], claims: Sequence[Plugin], blocked: Collection[str], *provided: type, **options: Any
) -> Any:
    """Import as `import_plugin` what the plugins of one name provide, unless `kind.refused` refuses and returns it."""
    return kind.refused(claims, blocked) or import_plugin(kind, claims[0], *provided, **options)


def load_extension(group: str, name: str, absence: str, install: str) -> Any:
    """Import what the plugin of a name provides, which is in a package of its own.

    Args:
        group: the entry-point group.
        name: the entry point's name.
        absence: the message if no installed package has it.
        install: the command that installs this package.

    Raises:
        ConfigError: it is not installed, it is blocked, or it cannot be imported.
    """
    claims = discover(group).claims.get(name)
    if claims is None:
        raise ConfigError(absence, remedy=install)
    provided = import_claimed(InstalledPlugin, claims, read_blocked_names())
    if isinstance(provided, InstalledPlugin):
        provided.require_ok(ConfigError)
    return provided


def load_developer_tool(name: str, user: str) -> Any:
    """Import a tool of the package delegate-devtools; raises as `load_extension`.

    Args:
        name: The entry point's name: debugger, diagnosis, first_nan, or trace.
        user: What needs it, such as an option; for messages.
    """
    absence = f"{user} needs the package delegate-devtools, which is not installed"
    return load_extension(DEBUGGERS, name, absence, "pip install ./plugins/devtools")


class Discovered(NamedTuple):
    """The plugins of an entry-point group.

    Args:
        claims: Names in alphabetical order, with their claims; several where distributions claim one name.
        refused: those that claim a name of this project's own plugins, which stay.
    """

    claims: dict[str, tuple[Plugin, ...]]
    refused: tuple[Plugin, ...]


Installed = Mapping[str, Sequence[Plugin]]  # by entry-point group


def find_plugins() -> Installed:
    """Return the plugins of all installed distributions, of which the first of each name counts; imports none."""
    import importlib.metadata  # it imports email, zip and csv packages, so only processes that look for plugins do

    installed: dict[str, list[Plugin]] = {}
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        with contextlib.suppress(ValueError):  # a file of another project's metadata is not UTF-8
            if f"[{OWN}." not in (distribution.read_text("entry_points.txt") or ""):
                continue
            owner, version = _owner_of(distribution)
            key = re.sub(r"[-_.]+", "-", owner).lower()  # an editable install is there twice, with its build's metadata
            if key in seen:
                continue
            seen.add(key)
            for entry in distribution.entry_points:
                value = entry.value.partition("[")[0].strip()
                installed.setdefault(entry.group, []).append(Plugin(entry.name, owner, version, value))
    return installed


def _owner_of(distribution: Distribution) -> tuple[str, str]:
    """Return the name and version of a distribution; its metadata may be damaged."""
    try:
        return distribution.metadata["Name"] or "unknown distribution", distribution.metadata["Version"] or ""
    except ValueError:
        return "unknown distribution", ""


def discover(group: str, installed: Installed | None = None) -> Discovered:
    """Return the plugins of an entry-point group.

    Args:
        group: the group.
        installed: the result of `find_plugins`; None calls it.
    """
    claims: dict[str, list[Plugin]] = {}
    for plugin in (find_plugins() if installed is None else installed).get(group, ()):
        claims.setdefault(plugin.name, []).append(plugin)
    counting, refused = {}, []
    for name in sorted(claims):
        own = [plugin for plugin in claims[name] if plugin.owner == OWN]
        counting[name] = tuple(own or claims[name])
        refused += [plugin for plugin in claims[name] if plugin not in counting[name]]
    return Discovered(counting, tuple(refused))


def refusal(plugin: Plugin, what: str) -> str:
    """Describe the refusal of a plugin that claims one of this project's own names; `what` is the kind of plugin."""
    return (
        f"{plugin.label} provides the {what} {plugin.name!r}, which is built into {OWN} and cannot be replaced: "
        f"uninstall {plugin.owner}"
    )


def read_blocked_names() -> frozenset[str]:
    """Return the plugin names that the environment variable DELEGATE_BLOCK_PLUGINS blocks."""
    return frozenset(part.strip() for part in os.environ.get(BLOCK_VARIABLE, "").split(",") if part.strip())


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
