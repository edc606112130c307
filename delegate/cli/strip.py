"""`delegate strip`: remove the debug info of a program file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import options, output
from delegate.program import file
from delegate.program.debug_info import stripped


def strip(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A program file.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", callback=options.PROGRAM, help="File to write. Default: FILE is replaced."
        ),
    ] = None,
) -> None:
    """Remove the report, the module paths and the source lines of a program file. It computes the same."""
    target = out or path
    program = file.load(path)
    before = path.stat().st_size
    file.save(stripped(program), target)
    output.print_line(f"saved {target}, {target.stat().st_size:,} bytes instead of {before:,}")
