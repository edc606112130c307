"""`delegate config` and `delegate lock`: check the files that users keep. Nothing is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import output
from delegate.cli.commands import Command, Group, expand_groups
from delegate.cli.model_options import Model, PlanOptions

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
    from delegate.placement.locked import check_locked

    with output.working(f"planning {model}"):
        notes = check_locked(exported, lock, source.backends, config=source.config)
    for note in notes:
        output.show(note)
    output.print_line(f"{lock} can be applied")
