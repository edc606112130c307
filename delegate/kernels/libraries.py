"""Kernel libraries: the project's own and those of plugins, and their order of preference."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from delegate.cache.runtime.environment import code_of, files_of
from delegate.errors import KernelError, did_you_mean
from delegate.kernels.table import Kernel, KernelTable
from delegate.plugins import (
    BLOCK_VARIABLE,
    OWN,
    PORTABLE,
    Discovered,
    InstalledPlugin,
    Plugin,
    PluginState,
    import_claimed,
    in_known_spelling,
    is_blocked,
    refusal,
)

KernelRequest = str | KernelTable | Sequence[str | KernelTable]  # libraries in order of preference
_ATEN, _TORCH = "aten", "torch"  # torch's own kernels are used only by name


@dataclass(frozen=True, slots=True)
class KernelLibrary(InstalledPlugin):
    """A kernel library as installed on this machine.

    Args:
        table: its kernels; None if it is not ok, or is torch's and not requested.
        overrides: operators of the project's own library that it replaces, at least for some dtypes.
    """

    noun: ClassVar[str] = "kernel library"

    table: KernelTable | None = None
    overrides: tuple[str, ...] = ()

    @classmethod
    def find(cls, claims: tuple[Plugin, ...], blocked: Collection[str]) -> KernelLibrary:
        """Import the library that these plugins of one name provide; its state and detail report problems."""
        name = claims[0].name
        table = import_claimed(cls, claims, () if name == PORTABLE else blocked, KernelTable, name_of="library")
        if isinstance(table, KernelTable):
            return cls.of(claims[0], table=table)
        state: KernelLibrary = table
        is_absent = isinstance(state.error, ModuleNotFoundError) and state.error.name == _TORCH
        return cls.without_torch(claims[0]) if name == _ATEN and is_absent else state

    @classmethod
    def find_aten(cls, plugin: Plugin, blocked: Collection[str]) -> KernelLibrary:
        """Return the entry of torch's kernels, without an import of torch."""
        if refused := cls.refused((plugin,), blocked):
            return refused
        if importlib.util.find_spec(_TORCH) is None:
            return cls.without_torch(plugin)
        return cls.of(plugin, detail=f"{_ATEN} is used only if it is requested: kernels=[{_ATEN!r}]")

    @classmethod
    def without_torch(cls, plugin: Plugin) -> KernelLibrary:
        """Return torch's kernels where torch is absent."""
        return cls.of(
            plugin,
            PluginState.UNAVAILABLE,
            detail=f"kernel library {_ATEN!r} needs {_TORCH}, which is not installed",
            remedy=f"pip install {_TORCH}, or leave it out of the kernel libraries",
        )


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
    loaded.require_ok(KernelError)
    assert loaded.table is not None
    return loaded.table


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
        discovered: the plugins of the group.
        blocked: patterns of names that must not be used.
        warn: called with the subject of a warning, which is reported once, and a sentence.
    """

    def __init__(self, discovered: Discovered, blocked: Collection[str], warn: Callable[[str, str], None]) -> None:
        self._discovered, self._blocked, self._warn = discovered, blocked, warn
        self._loaded: dict[str, KernelLibrary] = {}

    @cached_property
    def libraries(self) -> tuple[KernelLibrary, ...]:
        """All libraries in the order of preference.

        Plugins are first, then the project's own library, then torch's kernels, which are used only by name.
        """
        by_default = _order_by_default(self._library(name) for name in self._plugins if name != _ATEN)
        aten = self._plugins.get(_ATEN, ())[:1]
        return (*by_default, *(KernelLibrary.find_aten(plugin, self._blocked) for plugin in aten))

    def tables(self, request: KernelRequest | None = None) -> tuple[KernelTable, ...]:
        """Return the tables of kernel libraries, in order of preference.

        Args:
            request: a library's name, a table of the caller's own, or several of these; "portable" is last if not
                named. None: all working libraries except torch's, with one warning for each broken library.

        Raises:
            KernelError: a named library cannot be used; or, if none is named, two libraries claim one kernel; or the
                project's own library is broken.
        """
        if request is not None:
            return _select_tables(request, self._plugins, self._library)
        for library in self.libraries:
            if library.state is PluginState.BROKEN:
                self._warn(f"kernels {library.name}", f"{library.detail}: {library.remedy}")
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

    @cached_property
    def _plugins(self) -> dict[str, tuple[Plugin, ...]]:
        for plugin in self._discovered.refused:
            self._warn(plugin.label, refusal(plugin, KernelLibrary.noun))
        return self._discovered.claims

    def _library(self, name: str) -> KernelLibrary:
        if name not in self._loaded:
            self._loaded[name] = KernelLibrary.find(self._plugins[name], self._blocked)
        return self._loaded[name]
