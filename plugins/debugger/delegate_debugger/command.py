"""`delegate debug`: find the operators of a model that return wrong values on its backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import options, output
from delegate.cli.options import LoweringOptions, TrustCode
from delegate.errors import InputError


def debug(
    source: LoweringOptions,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="file.pt2, or package.module:function returning (module, example_inputs)."
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs",
            metavar="[NAME=]A.npy",
            help="Input to run on, by order or by name, or one .npz. Default: the example inputs of the export.",
        ),
    ] = None,
    program_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Debug this saved program of MODEL: its placement and partitions, in place of a new lowering.",
        ),
    ] = None,
    trust_code: TrustCode = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            callback=options.OUTPUTS,
            help="Write scripts that show the faults with the vendor's library alone.",
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Seconds after which no further sub-region is tried.")
    ] = 60.0,
    sqnr_db: Annotated[
        float | None,
        typer.Option("--sqnr-db", metavar="DB", help="Results below this are wrong. Default: by the precision."),
    ] = None,
    nan: Annotated[bool, typer.Option("--nan", help="Print only the first NaN and the first infinity.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
) -> None:
    """Find the operators that return wrong values: run a model beside torch, and reduce each wrong partition."""
    if model is None:
        raise _no_model(program_file)
    exported, sample = source.load_model(model), None
    import delegate
    from delegate.cli.models import read_sample
    from delegate_debugger import debug as find_faults

    if inputs:
        exported, sample = read_sample(exported, inputs)
    settings = source.read_settings()
    check = delegate.Verify(sample, sqnr_db=sqnr_db)
    with output.working(f"debugging {model}") as progress:
        diagnosis = find_faults(
            exported,
            source.backends,
            config=settings,
            inputs=check,
            budget=budget,
            output=out,
            program_file=program_file,
            trust_code=trust_code,
            progress=progress,
        )
    if as_json:
        output.print_json(diagnosis.not_finite if nan else json.loads(diagnosis.to_json()))
    elif nan:
        output.show("\n".join(diagnosis.not_finite) or "no result has NaN or infinity")
    else:
        output.show(*diagnosis.blocks())


def _no_model(program_file: Path | None) -> Exception:
    """Return the error of a call without a model, which the reference needs."""
    if program_file is None:
        return typer.BadParameter("MODEL is missing: give a file.pt2, or package.module:function")
    what = "a program file has compiled partitions, but no module to compare them with"
    remedy = f"give the model too: `delegate debug MODEL --from {program_file}`"
    return InputError(what, where=str(program_file), remedy=remedy)
