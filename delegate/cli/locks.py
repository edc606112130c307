"""`delegate lock`: compare lockfiles, and check one against a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import output
from delegate.cli.lower import Backends, ConfigFile, Inputs, Model
from delegate.cli.options import Imports, import_modules

app = typer.Typer(no_args_is_help=True, help="Compare lockfiles, or check one.", rich_markup_mode=None)

LockFile = Annotated[Path, typer.Argument(metavar="LOCK", help="Written by `delegate lower --measure --lock`.")]


@app.command("diff")
def diff(first: LockFile, second: LockFile) -> None:
    """Say what moved from one lockfile to another, and what that costs; nothing where all is the same."""
    with output.working("importing torch"):
        from delegate.placement.lock import Lock
    for line in Lock.load(first).differences(Lock.load(second)):
        print(line)


@app.command("check")
def check(
    lock: LockFile,
    model: Model,
    config: ConfigFile = None,
    backend: Backends = None,
    inputs: Inputs = None,
    imports: Imports = None,
) -> None:
    """Fail unless all nodes of a model can run where a lockfile has them. Nothing is compiled."""
    import_modules(imports)
    with output.working("importing torch"):
        from delegate.cli.models import load_model
        from delegate.lowering.strategies import check_locked
    with output.working(f"planning {model}"):
        notes = check_locked(load_model(model, inputs or []), lock, backend or None, config=config)
    for note in notes:
        print(note)
    print(f"{lock} is kept")
