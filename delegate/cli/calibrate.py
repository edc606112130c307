"""`delegate calibrate`: measure the rates of backends on this machine, by which nodes are placed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import options, output
from delegate.cli.completions import backend_names


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
    from delegate.placement.machine import calibrated
    from delegate.registry import default_registry

    chosen = [default_registry().resolve(name) for name in names or ()]
    with output.working("calibrating") as progress:
        profile, notes = calibrated(chosen or None, progress)
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
