"""`delegate cache`: the size of the cache on disk, and its removal."""

from __future__ import annotations

from typing import Annotated

import typer

from delegate.cache.runtime.files import MappedFiles
from delegate.cache.runtime.folder import (
    ARTIFACTS,
    CHOICES,
    PACKED,
    PLUGINS,
    VARIABLE,
    BoundedFolder,
    cache_folder,
    danger,
)
from delegate.cache.runtime.store import Store
from delegate.cli import output
from delegate.cli.commands import Command, Group
from delegate.errors import ConfigError

app = typer.Typer(cls=Group, no_args_is_help=True, help="Show or clear the cache.", rich_markup_mode=None)


@app.command("path", cls=Command)
def path() -> None:
    """Print the folder of the cache."""
    folder = cache_folder()
    output.print_line(str(folder) if folder is not None else f"off, because of the environment variable {VARIABLE}")


@app.command("info", cls=Command)
def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the folder of the cache, and the number and size of its entries."""
    folder = cache_folder()
    sizes = {kind: part.sizes() for kind, part in _parts().items()}
    if as_json:
        where = None if folder is None else str(folder)
        by_kind = {kind: {"entries": len(s), "bytes": sum(s)} for kind, s in sizes.items()}
        totals = {"entries": sum(map(len, sizes.values())), "bytes": sum(map(sum, sizes.values()))}
        output.print_json({"folder": where, **totals, **by_kind})
        return
    path()
    for kind, (_, of) in _KINDS.items():
        kind_sizes = sizes.get(kind, [])
        output.show(f"{len(kind_sizes)} {of}, {sum(kind_sizes) / 2**20:,.1f} MiB")


@app.command("clear", cls=Command)
def clear() -> None:
    """Remove every entry of the cache."""
    folder = cache_folder()
    if folder is not None and (problem := danger(folder)) is not None:
        what, remedy, _ = problem
        raise ConfigError(f"the cache is not cleared: {what}", remedy=remedy)
    removed = {kind: part.clear() for kind, part in _parts().items()}
    output.show("removed " + ", ".join(f"{removed.get(kind, 0)} {of}" for kind, (_, of) in _KINDS.items()))


_KINDS: dict[str, tuple[type[BoundedFolder], str]] = {
    ARTIFACTS: (Store, "compiled partitions and programs"),
    CHOICES: (Store, "placements and costs"),
    PACKED: (MappedFiles, "files of packed weights"),
    PLUGINS: (Store, "answers of plugins"),
}


def _parts() -> dict[str, BoundedFolder]:
    folder = cache_folder()
    return {} if folder is None else {kind: part(folder / kind) for kind, (part, _) in _KINDS.items()}
