"""`delegate lower-many`: lower models by configurations, in processes of this machine or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delegate.cli import output
from delegate.cli.options import OUTPUTS
from delegate.common.text_table import Table
from delegate_ray.command import connect

if TYPE_CHECKING:
    from delegate_ray.aot.farm import Outcome


def lower_many(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="JOBS", help="YAML file of models and configurations.")],
    folder: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", callback=OUTPUTS, help="Where to write the program files."),
    ],
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs at a time on this machine.")] = 1,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Work on this Ray cluster: host:port, or auto.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="With --ray: the CPUs of a job.")] = 1,
    again: Annotated[bool, typer.Option("--again", help="Lower all models, also if nothing has changed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcomes as JSON.")] = False,
) -> None:
    """Lower models by configurations, and print a table. A stopped command continues where it was."""
    from delegate_ray.aot import farm  # not for the help
    from delegate_ray.aot.jobs import read_jobs

    with ExitStack() as stack:
        jobs = read_jobs(file, folder)  # before Ray adds packages of its own to those whose versions count
        if ray is not None:
            stack.enter_context(connect(ray))
        record = farm.Record(folder, jobs)
        outcomes = [] if again else record.unchanged()
        same = {(o.model, o.configuration) for o in outcomes}
        left = [job for job in jobs if (job.model, job.configuration) not in same]
        farm.require_functions(left)
        results = farm.on_ray(left, threads) if ray is not None else farm.in_processes(left, processes)
        with output.advancing("jobs") as advance:
            for outcome in results:
                record.add(outcome)
                outcomes.append(outcome)
                advance(len(outcomes), len(jobs))
    order = {(job.model, job.configuration): place for place, job in enumerate(jobs)}
    outcomes.sort(key=lambda o: order[o.model, o.configuration])
    if context.find_root().params.get("debug"):
        sys.stderr.write("\n".join(o.traceback for o in outcomes if o.traceback))
    if as_json:
        output.print_json({"jobs": [asdict(o) for o in outcomes]})
    else:
        _show(outcomes)
    if any(o.state == farm.FAILED for o in outcomes):
        raise typer.Exit(1)


def _show(outcomes: Sequence[Outcome]) -> None:
    rows = tuple(
        (
            o.model,
            o.configuration,
            o.state,
            _partitions(o),
            _mebibytes(o.size),
            f"{o.seconds:.1f}",
        )
        for o in outcomes
    )
    header = ("model", "configuration", "state", "partitions", "MiB", "seconds")
    output.show(Table(header, rows, frozenset({4, 5})))
    for outcome in outcomes:
        if outcome.error:
            output.show(f"{outcome.model}.{outcome.configuration}: {outcome.error}")


def _partitions(outcome: Outcome) -> str:
    parts = [f"{backend} {count}" for backend, count in outcome.partitions.items()]
    return ", ".join([*parts, *([f"{outcome.portable} nodes portable"] if outcome.portable else [])])


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f}" if size else ""
