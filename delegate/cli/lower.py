"""`delegate lower`: from a model to a program file."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delegate.cli import options, output
from delegate.cli.options import LoweringOptions, Model

if TYPE_CHECKING:
    from delegate.config import Config
    from delegate.request import PlacementRequest

LOCKED = "locked: "  # prefix of a report's notes on an applied lock


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """The options that decide where nodes run."""

    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure plans of the backends on this machine, and use the best."),
    ] = False
    lock: Annotated[
        Path | None,
        typer.Option("--lock", metavar="FILE", callback=options.LOCK, help="Write the measured plan and its costs."),
    ] = None
    locked: Annotated[
        Path | None,
        typer.Option("--locked", metavar="FILE", help="Use the plan of this lockfile, without measuring."),
    ] = None
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="FILE",
            callback=options.BUNDLE,
            help="Write the programs that `delegate measure` runs on another machine.",
        ),
    ] = None
    costs: Annotated[
        list[Path] | None,
        typer.Option("--costs", metavar="FILE", help="Use the best plan by the costs that `delegate measure` wrote."),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Measure on nodes of this Ray cluster that have the backends."),
    ] = None

    def require_one_decision(self) -> None:
        """Raise BadParameter if two of the options decide where nodes run."""
        decisions = {"--locked": self.locked, "--bundle": self.bundle, "--costs": self.costs, "--ray": self.ray}
        for option, other in itertools.pairwise(name for name, value in decisions.items() if value):
            if (option, other) != ("--bundle", "--costs"):
                raise typer.BadParameter(f"{option} and {other} both decide where nodes run: give one of them")

    def request(self, settings: Config | None, *, is_named: bool) -> PlacementRequest | None:
        """Return the placement that the options request; None for the default.

        Args:
            settings: the configuration, whose placement `--lock` writes if no option decides.
            is_named: the command line or the configuration names the backends.
        """
        from delegate.config import PlacementSection
        from delegate.placement.locked import Replay
        from delegate.placement.measured import Measured, Remote
        from delegate.request import read_request

        if self.locked is not None:
            return Replay(self.locked, lockfile=self.lock)
        if self.bundle is not None or self.costs:
            return Remote(self.bundle, self.costs or [], lockfile=self.lock)
        if self.measure or self.ray is not None:
            return Measured(lockfile=self.lock, cluster=self.ray)
        if self.lock is None:
            return None
        section = PlacementSection() if settings is None else settings.measuring()
        return replace(read_request(section, is_named=is_named), lockfile=self.lock)


def lower(
    model: Model,
    source: LoweringOptions,
    place: PlacementOptions,
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
    verify: Annotated[
        list[str] | None,
        typer.Option(
            "--verify",
            metavar="[NAME=]A.npy",
            help="Input for a comparison with torch's results, by order or by name, or one .npz.",
        ),
    ] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Use compiled partitions of the cache.")] = True,
    trace: options.TraceFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Lower a model to a program file that runs without torch."""
    if out is None and place.bundle is None:
        raise typer.BadParameter("Missing option '--output' / '-o': the program file to write")
    options.require_distinct(
        {"--output": out, "--bundle": place.bundle, "--lock": place.lock, "--trace": trace},
        {
            "MODEL": Path(model),
            "--config": source.config,
            "--locked": place.locked,
            **{f"--costs {c}": c for c in place.costs or ()},
        },
    )
    place.require_one_decision()
    exported, sample = source.load_model(model), None
    from delegate.cli.models import read_sample
    from delegate.compile import lower_owned

    if verify:
        exported, sample = read_sample(exported, verify)
    settings = source.read_settings()
    is_named = source.backends is not None or (settings is not None and settings.backends is not None)
    with output.working(f"lowering {model}") as progress, options.tracing(trace):
        program = lower_owned(
            exported,
            source.backends,
            config=settings,
            verify=sample,
            cache=None if cache else False,
            placement=place.request(settings, is_named=is_named),
            progress=progress,
        )
        if out is not None:
            program.save(out)
    if as_json:
        output.print_json(json.loads(program.report.to_json()))
        return
    output.show(program.report.summary)
    if place.locked is not None:
        output.show(f"nothing was measured: the plan and its costs are those of {place.locked}")
    lock_notes = (note for note in program.report.notes if note.startswith(LOCKED))
    output.show(*lock_notes, *program.report.accuracy_lines(), *program.report.placement_blocks())
    written = [path for path in (out, place.bundle, trace) if path is not None]
    output.show(*(f"saved {path}, {path.stat().st_size:,} bytes" for path in written))
