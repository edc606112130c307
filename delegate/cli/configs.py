"""`delegate config`: check a configuration file, or print the schema of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import output

app = typer.Typer(no_args_is_help=True, help="Check a configuration, or print its schema.", rich_markup_mode=None)


@app.command("check")
def check(path: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file.")]) -> None:
    """Check a configuration file, options of its backends included."""
    from delegate.config import load_config

    config = load_config(path)
    if config.backends is None:
        chosen = "every available backend"
    else:
        chosen = ", ".join(c.name for c in config.backends) or "no backend, portable kernels alone"
    print(f"{path}: ok ({chosen})")


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of a configuration, with the options of the installed backends."""
    from delegate.config import json_schema

    output.print_json(json_schema())
