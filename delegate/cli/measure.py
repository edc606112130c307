"""`delegate measure`: measure the candidates of a bundle on this machine, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delegate.cli import options, output
from delegate.cli.options import Imports, import_modules

if TYPE_CHECKING:
    from delegate.placement.runtime.costs import MethodCosts


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
        float | None, typer.Option(min=0.001, help="Seconds for all. Default: as the bundle says.")
    ] = None,
    kernels: Annotated[
        list[str] | None,
        typer.Option("--kernels", "-k", help="Kernel library for what no backend takes; several by preference."),
    ] = None,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code", help="Open partitions that are machine code, as TVM's and QNN's: they run as you do."
        ),
    ] = False,
    imports: Imports = None,
) -> None:
    """Run the candidates of a bundle here, for `delegate lower --costs` on the machine that it is from."""
    from delegate.placement.runtime.bundle import measure as measured

    options.require_distinct({"--output": out}, {"FILE": path})
    import_modules(imports)
    with output.telling(f"measuring {path}") as progress:
        costs = measured(path, kernels=kernels, budget=budget, trust_code=trust_code, progress=progress)
    if out is None:
        output.print_json_text(costs.to_json())
        return
    costs.save(out)
    for name, method in costs.methods.items():
        print(f"{name}: measured by {method.objective} in {method.spent:.1f} s of {method.budget:g} s")
        output.table(("candidate", "cost", "rounds", ""), _rows(method))
    print(f"saved {out}")


def _rows(method: MethodCosts) -> list[tuple[str, ...]]:
    costs = {name: measurement.record for name, measurement in method.programs.items()}
    return [
        (name, "" if r.cost is None else f"{r.cost:.6g}", str(len(r.rounds)), r.failure) for name, r in costs.items()
    ]
