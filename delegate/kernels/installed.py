"""The kernel libraries of the installed distributions, each loaded on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import Any

from delegate.cache.environment import code_of, files_of
from delegate.errors import KernelError
from delegate.kernels.libraries import (
    ON_DEMAND,
    PACKAGES,
    KernelLibrary,
    KernelRequest,
    load_library,
    on_demand,
    order_by_default,
    select_tables,
)
from delegate.kernels.table import KernelTable
from delegate.plugins import OWN, Plugin, State, discover, is_blocked, refusal

KERNELS = "delegate.kernels"  # the group of their entry points


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
        demanded = PACKAGES.union(ON_DEMAND)
        by_default = order_by_default(self._library(name) for name in self._plugins if name not in demanded)
        named = [claims[0] for name, claims in self._plugins.items() if name in demanded]
        return (*by_default, *(on_demand(plugin, self._blocked) for plugin in named))

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
            return select_tables(request, self._plugins, self._library)
        for library in self.libraries:
            if library.state is State.BROKEN:
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
        if package not in PACKAGES or package not in self._plugins:
            return None
        library = self._library(package)
        if library.state is State.BROKEN:
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
            self._loaded[name] = load_library(self._plugins[name], self._blocked)
        return self._loaded[name]
