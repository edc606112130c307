"""Kernel libraries: the project's own and those of plugins, their order of preference, and their loading on demand."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from delegate.cache.runtime.environment import code_of, files_of
from delegate.errors import KernelError, did_you_mean
from delegate.kernels.table import Kernel, KernelTable
from delegate.plugins import (
    BLOCK_VARIABLE,
    KERNELS,
    OWN,
    PORTABLE,
    Plugin,
    PluginState,
    discover,
    full_traceback,
    in_known_spelling,
    is_blocked,
    misnamed,
    one_line,
    refusal,
)

KernelRequest = str | KernelTable | Sequence[str | KernelTable]  # libraries in order of preference
_ON_DEMAND = {"aten": "torch"}  # libraries that are used only by name -> the module that they need
# Libraries for the operators of other packages: used last, and only for operators of these packages.
_PACKAGES = frozenset({"torchvision", "transformers"})


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """A kernel library as installed on this machine.

    Args:
        name: the name of its entry point.
        state: ok, broken, blocked, or unavailable if the module that it needs is absent.
        owner, version: the distribution that declares it.
        table: its kernels; None if it is not ok, or is on demand and not requested.
        overrides: operators of the project's own library that it replaces, at least for some dtypes.
        detail: one sentence on why it is not ok; "" if it is ok.
        error: the exception of a broken library.
    """

    name: str
    state: PluginState
    owner: str
    version: str
    table: KernelTable | None = None
    overrides: tuple[str, ...] = ()
    detail: str = ""
    error: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def traceback(self) -> str:
        """The traceback of a broken library as Python prints it; "" for others."""
        return full_traceback(self.error)


def _order_by_default(libraries: Iterable[KernelLibrary]) -> tuple[KernelLibrary, ...]:
    """Order libraries: plugins by name, then the project's own library.

    Raises:
        KernelError: two plugins claim one operator on one dtype, or the project's own library is broken.
    """
    loaded = {library.name: library for library in sorted(libraries, key=lambda library: library.name)}
    portable = loaded.pop(PORTABLE, None)
    if portable is not None and portable.table is None:
        raise KernelError(portable.detail, remedy="reinstall delegate") from portable.error
    _refuse_conflicts(loaded.values())
    if portable is None or portable.table is None:
        return tuple(loaded.values())
    table = portable.table
    overriding = [_with_overrides(library, table) for library in loaded.values()]
    return (*overriding, portable)


def _select_tables(
    request: KernelRequest, known: Collection[str], library: Callable[[str], KernelLibrary]
) -> tuple[KernelTable, ...]:
    """Return the tables of a request in its order, which decides if several have a kernel.

    Args:
        request: a library's name, a table of the caller's own, or several of these. "portable" is last if not named.
        known: the names of all libraries.
        library: returns a library by name.

    Raises:
        KernelError: a library is unknown, cannot be used or is named twice.
    """
    tables: dict[str, KernelTable] = {}
    several = isinstance(request, Iterable) and not isinstance(request, str | KernelTable)
    items: Iterable[str | KernelTable] = request if several else [request]  # type: ignore[assignment,list-item]
    chosen = [item if isinstance(item, KernelTable) else _require_table(item, known, library) for item in items]
    if all(table.library != PORTABLE for table in chosen):
        chosen.append(_require_table(PORTABLE, known, library))
    for table in chosen:
        if table.library in tables:
            raise KernelError(
                f"kernel library {table.library!r} is listed twice",
                remedy="name each library once, and give each table a different name",
            )
        tables[table.library] = table
    return tuple(tables.values())


def _require_table(name: str, known: Collection[str], library: Callable[[str], KernelLibrary]) -> KernelTable:
    if not isinstance(name, str):
        raise KernelError(f"a {type(name).__name__} is not a kernel library", remedy="pass names or KernelTables")
    name = in_known_spelling(name, known)
    if name not in known:
        raise KernelError(f"no kernel library is named {name!r}", remedy=did_you_mean(name, known))
    loaded = library(name)
    if loaded.table is None:
        raise KernelError(loaded.detail, remedy=_remedy(loaded)) from loaded.error
    return loaded.table


def _remedy(library: KernelLibrary) -> str:
    if library.state is PluginState.UNAVAILABLE:
        return f"pip install {_ON_DEMAND[library.name]}, or leave it out of the kernel libraries"
    if library.state is PluginState.BLOCKED:
        return "remove it from that variable"
    return f"`delegate backends` lists the libraries; update or uninstall {library.owner}"


def _on_demand(plugin: Plugin, blocked: Collection[str]) -> KernelLibrary:
    """Return the entry of an on-demand library, without an import of it."""
    if is_blocked(plugin.name, blocked):
        return _blocked(plugin)
    if plugin.name in _PACKAGES:
        detail = f"{plugin.name} is used if a program has operators of {plugin.name}"
        return KernelLibrary(plugin.name, PluginState.OK, plugin.owner, plugin.version, detail=detail)
    if importlib.util.find_spec(_ON_DEMAND[plugin.name]) is None:
        return _unavailable(plugin)
    detail = f"{plugin.name} is used only if it is requested: kernels=[{plugin.name!r}]"
    return KernelLibrary(plugin.name, PluginState.OK, plugin.owner, plugin.version, detail=detail)


def _unavailable(plugin: Plugin) -> KernelLibrary:
    detail = f"kernel library {plugin.name!r} needs {_ON_DEMAND[plugin.name]}, which is not installed"
    return KernelLibrary(plugin.name, PluginState.UNAVAILABLE, plugin.owner, plugin.version, detail=detail)


def _load_library(claims: tuple[Plugin, ...], blocked: Collection[str]) -> KernelLibrary:
    """Import the library that these plugins of one name provide; its state and detail report problems."""
    plugin = claims[0]
    name = plugin.name
    if is_blocked(name, blocked) and name != PORTABLE:
        return _blocked(plugin)
    if len(claims) > 1:
        owners = " and ".join(p.label for p in claims)
        detail = f"several distributions claim the kernel library {name!r}: {owners}"
        return KernelLibrary(name, PluginState.BROKEN, owners, "", detail=detail)
    try:
        table = plugin.load()
    except (Exception, SystemExit) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == _ON_DEMAND.get(name, "")
        return _unavailable(plugin) if absent else _broken(plugin, f"fails to import: {one_line(error)}", error)
    return _check_table(plugin, table)


def _check_table(plugin: Plugin, table: object) -> KernelLibrary:
    if not isinstance(table, KernelTable):
        return _broken(plugin, f"has a {type(table).__name__} at {plugin.value}, not a KernelTable")
    if table.library != plugin.name:
        return _broken(plugin, misnamed(plugin, table.library))
    return KernelLibrary(plugin.name, PluginState.OK, plugin.owner, plugin.version, table)


def _blocked(plugin: Plugin) -> KernelLibrary:
    detail = f"kernel library {plugin.name!r} is blocked by the environment variable {BLOCK_VARIABLE}"
    return KernelLibrary(plugin.name, PluginState.BLOCKED, plugin.owner, plugin.version, detail=detail)


def _broken(plugin: Plugin, problem: str, error: BaseException | None = None) -> KernelLibrary:
    detail = f"kernel library {plugin.name!r} of {plugin.label} is broken: it {problem}"
    return KernelLibrary(plugin.name, PluginState.BROKEN, plugin.owner, plugin.version, detail=detail, error=error)


def _refuse_conflicts(libraries: Iterable[KernelLibrary]) -> None:
    seen: dict[str, list[tuple[Kernel, KernelLibrary]]] = {}
    for library in libraries:
        for kernel in library.table or ():
            rows = seen.setdefault(kernel.op, [])
            for other, owner in rows:
                both = other.dtypes & kernel.dtypes
                if owner is not library and both and other.contiguous == kernel.contiguous:
                    dtypes = ", ".join(sorted(t.name for t in both))
                    raise KernelError(
                        f"two kernels of {kernel.op} for {dtypes}: from {owner.owner} {owner.version} "
                        f"and from {library.owner} {library.version}",
                        remedy=(
                            f"name both in order of preference, as in kernels=[{owner.name!r}, {library.name!r}], "
                            f"or block one of them: {BLOCK_VARIABLE}={library.name}"
                        ),
                    )
            rows.append((kernel, library))


def _with_overrides(library: KernelLibrary, portable: KernelTable) -> KernelLibrary:
    overrides = {k.op for k in library.table or () if any(k.dtypes & other.dtypes for other in portable.rows(k.op))}
    return replace(library, overrides=tuple(sorted(overrides)))


class InstalledKernels:
    """The installed kernel libraries by the names of their entry points.

    Args:
        blocked: patterns of names that must not be used.
        warn: called with the subject of a warning, which is reported once, and a sentence.
    """

    def __init__(self, blocked: Collection[str], warn: Callable[[str, str], None]) -> None:
        self._blocked, self._warn = blocked, warn
        self._loaded: dict[str, KernelLibrary] = {}

    @cached_property
    def libraries(self) -> tuple[KernelLibrary, ...]:
        """All libraries in the order of preference.

        Plugins are first, then the project's own library, then the libraries that are used only by name.
        """
        demanded = _PACKAGES.union(_ON_DEMAND)
        by_default = _order_by_default(self._library(name) for name in self._plugins if name not in demanded)
        named = [claims[0] for name, claims in self._plugins.items() if name in demanded]
        return (*by_default, *(_on_demand(plugin, self._blocked) for plugin in named))

    def tables(self, request: KernelRequest | None = None) -> tuple[KernelTable, ...]:
        """Return the tables of kernel libraries, in order of preference.

        Args:
            request: a library's name, a table of the caller's own, or several of these; "portable" is last if not
                named. None: all working libraries except those on demand, with one warning for each broken library.

        Raises:
            KernelError: a named library cannot be used; or, if none is named, two libraries claim one kernel; or the
                project's own library is broken.
        """
        if request is not None:
            return _select_tables(request, self._plugins, self._library)
        for library in self.libraries:
            if library.state is PluginState.BROKEN:
                self._warn(f"kernels {library.name}", f"{library.detail}: uninstall {library.owner}")
        return tuple(library.table for library in self.libraries if library.table is not None)

    def identity(self, request: KernelRequest | None = None) -> tuple[Any, ...] | None:
        """Return a text that identifies the kernels of `tables(request)`, without the code of this project.

        The result is None if it cannot be known: the caller passed a table, or a library has no files.
        """
        several = isinstance(request, Iterable) and not isinstance(request, str | KernelTable)
        names: list[Any] | None = None if request is None else [*request] if several else [request]
        if names is not None and not all(isinstance(name, str) for name in names):
            return None
        if names is not None:
            names = [in_known_spelling(name, self._plugins) for name in names]
        foreign = []
        for name, claims in self._plugins.items():
            for plugin in claims:
                is_requested = names is None or name in names
                if plugin.owner != OWN and is_requested and not is_blocked(name, self._blocked):
                    self._library(name)  # imports its code
                    code = code_of(plugin.module.partition(".")[0]), files_of(plugin.owner)
                    foreign.append((*plugin, *code))
        if any(None in row for row in foreign):
            return None
        return names, sorted(self._blocked), foreign

    def of_package(self, package: str) -> KernelTable | None:
        """Return the project's kernels of another package's operators; None if it has none or they are blocked.

        Raises:
            KernelError: the library is broken.
        """
        if package not in _PACKAGES or package not in self._plugins:
            return None
        library = self._library(package)
        if library.state is PluginState.BROKEN:
            raise KernelError(library.detail, remedy=f"update or uninstall {library.owner}") from library.error
        return library.table

    @cached_property
    def _plugins(self) -> dict[str, tuple[Plugin, ...]]:
        claims, refused = discover(KERNELS)
        for plugin in refused:
            self._warn(plugin.label, refusal(plugin, "kernel library"))
        return claims

    def _library(self, name: str) -> KernelLibrary:
        if name not in self._loaded:
            self._loaded[name] = _load_library(self._plugins[name], self._blocked)
        return self._loaded[name]
