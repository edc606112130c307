"""`delegate lower`: from a model to a program file."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delegate.cli import options, output
from delegate.cli.completions import backend_names
from delegate.cli.options import Imports, import_modules

if TYPE_CHECKING:
    from delegate.placement.policy import PlacementRequest

LOCKED = "locked: "  # prefix of a report's notes on an applied lock

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="file.pt2, or package.module:function returning (module, example_inputs)."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", metavar="A.npy", help="Example input of a TorchScript file, in order."),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML file; `delegate config check` checks it.")
]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        "-b",
        metavar="NAME",
        autocompletion=backend_names,
        help="Backend; repeat it in order of preference. Default: all available.",
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="Data to quantize with, in place of the configuration's: .npz, a folder of these, or module:function.",
    ),
]
Verify = Annotated[
    list[str] | None,
    typer.Option(
        "--verify",
        metavar="[NAME=]A.npy",
        help="Input for a comparison with torch's results, by order or by name, or one .npz.",
    ),
]


def lower(
    model: Model,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            callback=options.PROGRAM,
            help="Program file to write.  [required, unless --bundle is given]",
        ),
    ] = None,
    config: ConfigFile = None,
    backend: Backends = None,
    inputs: Inputs = None,
    calibration: Calibration = None,
    verify: Verify = None,
    imports: Imports = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Use compiled partitions of the cache.")] = True,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure plans of the backends on this machine, and use the best."),
    ] = False,
    lock: Annotated[
        Path | None,
        typer.Option(
            "--lock",
            metavar="FILE",
            callback=options.LOCK,
            help="Write the measured plan and its costs.",
        ),
    ] = None,
    locked: Annotated[
        Path | None,
        typer.Option("--locked", metavar="FILE", help="Use the plan of this lockfile, without measuring."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="FILE",
            callback=options.BUNDLE,
            help="Write the programs that `delegate measure` runs on another machine.",
        ),
    ] = None,
    costs: Annotated[
        list[Path] | None,
        typer.Option("--costs", metavar="FILE", help="Use the best plan by the costs that `delegate measure` wrote."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Measure on nodes of this Ray cluster that have the backends."),
    ] = None,
    trace: options.TraceFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Lower a model to a program file that runs without torch."""
    if out is None and bundle is None:
        raise typer.BadParameter("Missing option '--output' / '-o': the program file to write")
    options.require_distinct(
        {"--output": out, "--bundle": bundle, "--lock": lock, "--trace": trace},
        {"MODEL": Path(model), "--config": config, "--locked": locked, **{f"--costs {c}": c for c in costs or ()}},
    )
    _require_one_decision({"--locked": locked, "--bundle": bundle, "--costs": costs, "--ray": ray})
    with output.working("importing torch"):
        from delegate.cli.models import load_model, read_sample, read_settings
        from delegate.compile import lower_owned
        from delegate.config import PlacementSection
        from delegate.placement.strategies import configured_request
    import_modules(imports)
    with output.working(f"exporting {model}"):
        source = load_model(model, inputs or ())
        source, sample = read_sample(source, verify) if verify else (source, None)
    settings = read_settings(config, calibration)
    placement = _placement(measure, lock, locked, bundle, costs or [], ray)
    if placement is None and lock is not None:
        section = PlacementSection() if settings is None else settings.measuring()
        is_named = bool(backend) or (settings is not None and settings.backends is not None)
        placement = replace(configured_request(section, is_named=is_named), lockfile=lock)
    with output.working(f"lowering {model}") as progress, options.tracing(trace):
        program = lower_owned(
            source,
            backend or None,
            config=settings,
            verify=sample,
            cache=None if cache else False,
            placement=placement,
            progress=progress,
        )
        if out is not None:
            program.save(out)
    if as_json:
        output.print_json(json.loads(program.report.to_json()))
        return
    output.show(program.report.summary)
    if locked is not None:
        output.show(f"nothing was measured: the plan and its costs are those of {locked}")
    lock_notes = (note for note in program.report.notes if note.startswith(LOCKED))
    output.show(*lock_notes, *program.report.accuracy_lines(), *program.report.placement_blocks())
    output.show(*(f"saved {path}, {path.stat().st_size:,} bytes" for path in (out, bundle, trace) if path is not None))


def _require_one_decision(options: dict[str, object]) -> None:
    """Raise BadParameter if the command has two options that decide where nodes run.

    Args:
        options: name of each such option -> its value.
    """
    for option, other in itertools.pairwise(name for name, value in options.items() if value):
        if (option, other) != ("--bundle", "--costs"):
            raise typer.BadParameter(f"{option} and {other} both decide where nodes run: give one of them")


def _placement(
    is_measured: bool, lock: Path | None, locked: Path | None, bundle: Path | None, costs: list[Path], ray: str | None
) -> PlacementRequest | None:
    """Return the placement that options request; None for the default."""
    from delegate.placement.policy import Measured, Remote, Replay

    if locked is not None:
        return Replay(locked, lockfile=lock)
    if bundle is not None or costs:
        return Remote(bundle, costs, lockfile=lock)
    if is_measured or ray is not None:
        return Measured(lockfile=lock, cluster=ray)
    return None
