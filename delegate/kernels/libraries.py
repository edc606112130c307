"""Kernel libraries: the project's own and those of plugins, and their order of preference."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from delegate.errors import KernelError, did_you_mean
from delegate.kernels.kernel import Kernel
from delegate.kernels.table import KernelTable
from delegate.plugins import BLOCK_VARIABLE, PORTABLE, Plugin, State, full_traceback, is_blocked, misnamed, one_line

KernelRequest = str | KernelTable | Sequence[str | KernelTable]  # libraries in order of preference
ON_DEMAND = {"aten": "torch"}  # libraries that are used only by name -> the module that they need
# Libraries for the operators of other packages: used last, and only for operators of these packages.
PACKAGES = frozenset({"torchvision", "transformers"})


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
    state: State
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


def order_by_default(libraries: Iterable[KernelLibrary]) -> tuple[KernelLibrary, ...]:
    """Order libraries: plugins by name, then the project's own library.

    Raises:
        KernelError: two plugins claim one operator on one dtype, or the project's own library is broken.
    """
    loaded = {library.name: library for library in sorted(libraries, key=lambda library: library.name)}
    portable = loaded.pop(PORTABLE, None)
    if portable is not None and portable.table is None:
        raise KernelError(portable.detail, remedy="install delegate anew") from portable.error
    _refuse_conflicts(loaded.values())
    if portable is None or portable.table is None:
        return tuple(loaded.values())
    table = portable.table
    overriding = [_with_overrides(library, table) for library in loaded.values()]
    return (*overriding, portable)


def select_tables(
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
                f"kernel library {table.library!r} is named twice",
                remedy="name every library once, and call tables apart",
            )
        tables[table.library] = table
    return tuple(tables.values())


def _require_table(name: str, known: Collection[str], library: Callable[[str], KernelLibrary]) -> KernelTable:
    if not isinstance(name, str):
        raise KernelError(f"a {type(name).__name__} is no kernel library", remedy="give names and KernelTables")
    if name not in known:
        raise KernelError(f"no kernel library is named {name!r}", remedy=did_you_mean(name, known))
    loaded = library(name)
    if loaded.table is None:
        raise KernelError(loaded.detail, remedy=_remedy(loaded)) from loaded.error
    return loaded.table


def _remedy(library: KernelLibrary) -> str:
    if library.state is State.UNAVAILABLE:
        return f"pip install {ON_DEMAND[library.name]}, or leave it out of the kernel libraries"
    if library.state is State.BLOCKED:
        return "take it out of there"
    return f"`delegate backends` lists the libraries; update or uninstall {library.owner}"


def on_demand(plugin: Plugin, blocked: Collection[str]) -> KernelLibrary:
    """Return the entry of an on-demand library, without an import of it."""
    if is_blocked(plugin.name, blocked):
        return _blocked(plugin)
    if plugin.name in PACKAGES:
        detail = f"{plugin.name} is used where a program has operators of {plugin.name}"
        return KernelLibrary(plugin.name, State.OK, plugin.owner, plugin.version, detail=detail)
    if importlib.util.find_spec(ON_DEMAND[plugin.name]) is None:
        return _unavailable(plugin)
    detail = f"{plugin.name} is used where it is named: kernels=[{plugin.name!r}]"
    return KernelLibrary(plugin.name, State.OK, plugin.owner, plugin.version, detail=detail)


def _unavailable(plugin: Plugin) -> KernelLibrary:
    detail = f"kernel library {plugin.name!r} needs {ON_DEMAND[plugin.name]}, which is not installed"
    return KernelLibrary(plugin.name, State.UNAVAILABLE, plugin.owner, plugin.version, detail=detail)


def load_library(claims: tuple[Plugin, ...], blocked: Collection[str]) -> KernelLibrary:
    """Import the library that these plugins of one name provide; its state and detail report problems."""
    plugin = claims[0]
    name = plugin.name
    if is_blocked(name, blocked) and name != PORTABLE:
        return _blocked(plugin)
    if len(claims) > 1:
        owners = " and ".join(p.label for p in claims)
        detail = f"several distributions claim the kernel library {name!r}: {owners}"
        return KernelLibrary(name, State.BROKEN, owners, "", detail=detail)
    try:
        table = plugin.load()
    except (Exception, SystemExit) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == ON_DEMAND.get(name, "")
        return _unavailable(plugin) if absent else _broken(plugin, f"fails to import: {one_line(error)}", error)
    return _check_table(plugin, table)


def _check_table(plugin: Plugin, table: object) -> KernelLibrary:
    if not isinstance(table, KernelTable):
        return _broken(plugin, f"gives {type(table).__name__} at {plugin.value}, not a KernelTable")
    if table.library != plugin.name:
        return _broken(plugin, misnamed(plugin, table.library))
    return KernelLibrary(plugin.name, State.OK, plugin.owner, plugin.version, table)


def _blocked(plugin: Plugin) -> KernelLibrary:
    detail = f"kernel library {plugin.name!r} is blocked by the environment variable {BLOCK_VARIABLE}"
    return KernelLibrary(plugin.name, State.BLOCKED, plugin.owner, plugin.version, detail=detail)


def _broken(plugin: Plugin, problem: str, error: BaseException | None = None) -> KernelLibrary:
    detail = f"kernel library {plugin.name!r} of {plugin.label} is broken: it {problem}"
    return KernelLibrary(plugin.name, State.BROKEN, plugin.owner, plugin.version, detail=detail, error=error)


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
                        f"two kernels of {kernel.op} for {dtypes}: of {owner.owner} {owner.version} "
                        f"and of {library.owner} {library.version}",
                        remedy=f"uninstall one of them, or block it: {BLOCK_VARIABLE}={library.name}",
                    )
            rows.append((kernel, library))


def _with_overrides(library: KernelLibrary, portable: KernelTable) -> KernelLibrary:
    overrides = {k.op for k in library.table or () if any(k.dtypes & other.dtypes for other in portable.rows(k.op))}
    return replace(library, overrides=tuple(sorted(overrides)))
