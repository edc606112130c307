"""`delegate cache`: what lowering keeps on disk for the next time."""

from __future__ import annotations

from typing import Annotated

import typer

from delegate.cache.folder import ARTIFACTS, VARIABLE, cache_folder
from delegate.cache.store import Store
from delegate.cli import output

app = typer.Typer(no_args_is_help=True, help="Show or clear the compile cache.", rich_markup_mode=None)


@app.command("path")
def path() -> None:
    """Print the folder of the cache."""
    folder = cache_folder()
    print(folder if folder is not None else f"off, by the environment variable {VARIABLE}")


@app.command("info")
def info(as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False) -> None:
    """Say where the cache lies and how much it holds."""
    folder, store = cache_folder(), _store()
    sizes = store.sizes() if store else []
    if as_json:
        where = None if folder is None else str(folder)
        output.print_json({"folder": where, "entries": len(sizes), "bytes": sum(sizes)})
        return
    path()
    print(f"{len(sizes)} entries, {sum(sizes) / 2**20:,.1f} MiB")


@app.command("clear")
def clear() -> None:
    """Remove all that the cache holds."""
    store = _store()
    print(f"removed {store.clear() if store else 0} entries")


def _store() -> Store | None:
    folder = cache_folder()
    return None if folder is None else Store(folder / ARTIFACTS)
