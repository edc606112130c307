"""Kernel libraries: the project's own and those of plugins, in the order in which they are asked for a kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from delegate.errors import KernelError
from delegate.kernels.table import Kernel, KernelTable
from delegate.plugins import BLOCK_VARIABLE, Plugin, State, full_traceback, is_blocked, one_line

PORTABLE = "portable"  # the project's own library: asked last, never blocked


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """A kernel library as it is found on this machine.

    Args:
        name: of its entry point.
        state: ok, broken or blocked.
        owner, version: the distribution that declares it.
        table: its kernels; None where it is not ok.
        overrides: operators of the project's own library that it takes over, for some dtypes at least.
        detail: one sentence on why it is not ok; empty where it is.
        error: what a broken one raised.
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
        """The traceback of a broken library as Python prints it; empty for another."""
        return full_traceback(self.error)


def kernel_libraries(plugins: Mapping[str, tuple[Plugin, ...]], blocked: Collection[str]) -> tuple[KernelLibrary, ...]:
    """Load the libraries; those of plugins come first, in the order of their names, the project's own last.

    Raises:
        KernelError: two plugins claim one operator on one dtype, or the project's own library is broken.
    """
    names = sorted(plugins, key=lambda name: (name == PORTABLE, name))
    loaded = {name: _load(plugins[name], blocked) for name in names}
    portable = loaded.pop(PORTABLE, None)
    if portable is not None and portable.table is None:
        raise KernelError(portable.detail, remedy="install delegate anew") from portable.error
    _refuse_conflicts(loaded.values())
    if portable is None or portable.table is None:
        return tuple(loaded.values())
    table = portable.table
    overriding = [_with_overrides(library, table) for library in loaded.values()]
    return (*overriding, portable)


def _load(claims: tuple[Plugin, ...], blocked: Collection[str]) -> KernelLibrary:
    plugin = claims[0]
    name, place = plugin.name, (plugin.owner, plugin.version)
    if is_blocked(name, blocked) and name != PORTABLE:
        detail = f"kernel library {name!r} is blocked by the environment variable {BLOCK_VARIABLE}"
        return KernelLibrary(name, State.BLOCKED, *place, detail=detail)
    if len(claims) > 1:
        owners = " and ".join(p.label for p in claims)
        detail = f"several distributions claim the kernel library {name!r}: {owners}"
        return KernelLibrary(name, State.BROKEN, owners, "", detail=detail)
    broken = f"kernel library {name!r} of {plugin.label} is broken: it"
    try:
        table = plugin.load()
    except (Exception, SystemExit) as error:
        detail = f"{broken} fails to import: {one_line(error)}"
        return KernelLibrary(name, State.BROKEN, *place, detail=detail, error=error)
    if not isinstance(table, KernelTable):
        detail = f"{broken} gives {type(table).__name__} at {plugin.entry.value}, not a KernelTable"
        return KernelLibrary(name, State.BROKEN, *place, detail=detail)
    if table.library != name:
        detail = f"{broken} calls itself {table.library!r}, unlike its entry point {name!r}"
        return KernelLibrary(name, State.BROKEN, *place, detail=detail)
    return KernelLibrary(name, State.OK, *place, table)


def _refuse_conflicts(libraries: Iterable[KernelLibrary]) -> None:
    seen: dict[str, list[tuple[Kernel, KernelLibrary]]] = {}
    for library in libraries:
        for kernel in library.table or ():
            rows = seen.setdefault(kernel.op, [])
            for other, owner in rows:
                if owner is not library and (both := other.dtypes & kernel.dtypes):
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
