"""`delegate measure`: measure the candidates of a bundle on this machine, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import options, output
from delegate.cli.options import Imports, TrustCode, kernel_names
from delegate.plugins.user_modules import import_modules


def measure(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Written by `delegate lower --measure --bundle`.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="COSTS",
            callback=options.COSTS,
            help="File to write. Default: JSON on stdout.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="Seconds for all methods. Default: those of the bundle."),
    ] = None,
    kernels: Annotated[
        list[str] | None,
        typer.Option(
            "--kernels",
            "-k",
            metavar="NAME",
            autocompletion=kernel_names,
            help="Kernel library for portable nodes; repeat it in order of preference.",
        ),
    ] = None,
    trust_code: TrustCode = False,
    imports: Imports = None,
) -> None:
    """Measure the candidates of a bundle on this machine, for `delegate lower --costs` on another."""
    from delegate_remote.runtime.measuring import measure as measure_bundle  # late: the list of commands needs no NumPy

    options.require_distinct({"--output": out}, {"FILE": path})
    import_modules(imports)
    with output.working(f"measuring {path}") as progress:
        costs = measure_bundle(path, kernels=kernels, budget=budget, trust_code=trust_code, progress=progress)
    if out is None:
        output.print_json(json.loads(costs.to_json()))
        return
    costs.save(out)
    for sentence, rows in costs.tables():
        output.show(sentence)
        output.table(("candidate", "cost", "rounds", ""), rows)
    output.print_line(f"saved {out}")
