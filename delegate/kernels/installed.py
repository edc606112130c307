"""The kernel libraries of the installed distributions, each loaded when it is asked for."""

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
    Wanted,
    in_default_order,
    in_preferred_order,
    load_library,
    on_demand,
)
from delegate.kernels.table import KernelTable
from delegate.plugins import OWN, Plugin, State, discover, is_blocked, refusal

KERNELS = "delegate.kernels"  # the group of their entry points


class InstalledKernels:
    """Kernel libraries by the names of their entry points.

    Args:
        blocked: patterns of names that are not to be used.
        warn: called with what a warning is of, which is given once, and a sentence.
    """

    def __init__(self, blocked: Collection[str], warn: Callable[[str, str], None]) -> None:
        self._blocked, self._warn = blocked, warn
        self._loaded: dict[str, KernelLibrary] = {}

    @cached_property
    def libraries(self) -> tuple[KernelLibrary, ...]:
        """All in the order in which they are asked for a kernel: plugins, the project's own, and those that are asked
        only where they are named.
        """
        demanded = PACKAGES.union(ON_DEMAND)
        by_default = in_default_order(self._library(name) for name in self._plugins if name not in demanded)
        named = [claims[0] for name, claims in self._plugins.items() if name in demanded]
        return (*by_default, *(on_demand(plugin, self._blocked) for plugin in named))

    def tables(self, wanted: Wanted | None = None) -> tuple[KernelTable, ...]:
        """The tables of kernel libraries, in order of preference.

        Args:
            wanted: a library's name, a table of the caller's own, or several of these; "portable" comes last where it
                is not named. None: all libraries that work but for "aten"; warns, once, of each broken one.

        Raises:
            KernelError: a library that was named cannot be used; or, where none is named, two libraries claim one
                kernel; or the project's own library is broken.
        """
        if wanted is not None:
            return in_preferred_order(wanted, self._plugins, self._library)
        for library in self.libraries:
            if library.state is State.BROKEN:
                self._warn(f"kernels {library.name}", f"{library.detail}: uninstall {library.owner}")
        return tuple(library.table for library in self.libraries if library.table is not None)

    def identity(self, wanted: Wanted | None = None) -> tuple[Any, ...] | None:
        """What the kernels of `tables(wanted)` are, as text, but for the code of this project; None where the caller
        gave a table, or a library has no files, so that nobody can tell."""
        several = isinstance(wanted, Iterable) and not isinstance(wanted, str | KernelTable)
        names: list[Any] | None = None if wanted is None else [*wanted] if several else [wanted]
        if names is not None and not all(isinstance(name, str) for name in names):
            return None
        foreign = []
        for name, claims in self._plugins.items():
            for plugin in claims:
                asked_for = names is None or name in names
                if plugin.owner != OWN and asked_for and not is_blocked(name, self._blocked):
                    self._library(name)  # which imports its code
                    code = code_of(plugin.module.partition(".")[0]), files_of(plugin.owner)
                    foreign.append((*plugin, *code))
        if any(None in row for row in foreign):
            return None
        return names, sorted(self._blocked), foreign

    def of_package(self, package: str) -> KernelTable | None:
        """The project's kernels of another package's operators; None where it has none, or they are blocked.

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
