"""`delegate config`, `lock`, `cache` and `calibrate`: what users keep on a machine. Nothing is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delegate.cache.runtime.folder import (
    ARTIFACTS,
    CHOICES,
    PACKED,
    PLUGINS,
    VARIABLE,
    BoundedFolder,
    MappedFiles,
    cache_folder,
    danger,
)
from delegate.cache.runtime.store import Store
from delegate.cli import options, output
from delegate.cli.commands import Command, Group, expand_groups
from delegate.cli.options import Model, PlanOptions, backend_names
from delegate.errors import ConfigError

lock_app = typer.Typer(cls=Group, no_args_is_help=True, help="Compare lockfiles, or check one.", rich_markup_mode=None)
config_app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Check a configuration, or print its schema.", rich_markup_mode=None
)


@config_app.command("check", cls=Command)
def check_config(path: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file.")]) -> None:
    """Check a configuration file, options of its backends included."""
    with output.working(f"checking {path}"):
        from delegate.config import load_config

        config = load_config(path)
    if config.backends is None:
        chosen = "every available backend"
    else:
        chosen = ", ".join(c.name for c in config.backends) or "no backend, only portable kernels"
    output.print_line(f"{path}: ok ({chosen})")


@config_app.command("schema", cls=Command)
def print_schema() -> None:
    """Print the JSON schema of a configuration, with the options of the installed backends."""
    with output.working("reading the options of the installed backends"):
        from delegate.config import json_schema

        schema = json_schema()
    output.print_json(schema)


LockFile = Annotated[Path, typer.Argument(metavar="LOCK", help="Written by `delegate lower --measure --lock`.")]


@lock_app.command("diff", cls=Command)
def diff_locks(first: LockFile, second: LockFile) -> None:
    """Show the differences between two lockfiles: moved nodes, and their costs."""
    with output.working("importing torch"):
        from delegate.placement.lock import Lock
    for line in Lock.load(first).differences(Lock.load(second)):
        output.show(line)


@lock_app.command("check", cls=Command)
@expand_groups
def check_lock(lock: LockFile, model: Model, source: PlanOptions) -> None:
    """Check that all nodes of a model can run as in a lockfile, without compiling."""
    exported = source.load_model(model)
    from delegate.compile import check_locked

    with output.working(f"planning {model}"):
        notes = check_locked(exported, lock, source.backends, config=source.config)
    for note in notes:
        output.show(note)
    output.print_line(f"{lock} can be applied")


cache_app = typer.Typer(cls=Group, no_args_is_help=True, help="Show or clear the cache.", rich_markup_mode=None)


@cache_app.command("path", cls=Command)
def path() -> None:
    """Print the folder of the cache."""
    folder = cache_folder()
    output.print_line(str(folder) if folder is not None else f"off, because of the environment variable {VARIABLE}")


@cache_app.command("info", cls=Command)
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


@cache_app.command("clear", cls=Command)
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


def calibrate(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BACKEND]...", autocompletion=backend_names, help="Backends. Default: all that are available."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PROFILE", callback=options.PROFILE, help="Also write the profile to this file."
        ),
    ] = None,
) -> None:
    """Measure how fast backends and kernels are on this machine, for the placement of nodes."""
    from delegate.costs.machine import calibrate_again
    from delegate.registry import default_registry

    chosen = [default_registry().resolve(name) for name in names or ()]
    with output.working("calibrating") as progress:
        profile, notes = calibrate_again(chosen or None, progress)
    rows = [
        (name, rates.origin, f"{rates.call.call * 1e6:.1f} us", f"{len(rates.operators)}")
        for name, rates in profile.places.items()
    ]
    output.table(("place", "rates", "call", "kinds of operators"), rows)
    output.show(*notes)
    if out is not None:
        profile.save(out)
        output.print_line(f"saved {out}")
    if notes and not any(profile.rates(name).origin == "calibrated" for name in chosen or profile.places):
        raise typer.Exit(1)
