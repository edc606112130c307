"""`delegate batch`: run a program on all rows of a file, in this process or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from delegate.cli import output
from delegate.cli.options import OUTPUTS, LoadOptions, method_names
from delegate.errors import ConfigError

if TYPE_CHECKING:
    from delegate_ray.runtime.job import Finished, Job
    from delegate_ray.runtime.parts import Part


def batch(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Program file.")],
    source: Annotated[
        Path,
        typer.Option(
            "--input",
            "-i",
            metavar="PATH",
            help="Rows: .parquet, .csv, .jsonl, .npy, or a folder of such files or of images.",
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", callback=OUTPUTS, help="Where to write the output files."),
    ],
    load: LoadOptions,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="INPUT=COLUMN[,COLUMN]",
            help="The column of an input, or the columns of its elements. Default: the column of its name.",
        ),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option("--result", metavar="OUTPUT=COLUMN", help="An output and its column. Default: all outputs."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="COLUMN", help="A column of the input for the output files.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", autocompletion=method_names, help="Method. Default: that of a plain call."),
    ] = None,
    bad_rows: Annotated[
        Literal["raise", "drop", "column"],
        typer.Option(case_sensitive=False, help="For rows that do not fit: end, leave them out, or a column `error`."),
    ] = "raise",
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Rows of the input for each output file.")] = 10_000,
    batch_rows: Annotated[
        int | None,
        typer.Option(
            "--batch",
            min=1,
            metavar="N",
            help="Rows of a call, if the program has a dynamic batch. Default: 64, or fewer if rows are large.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads of a call. With --ray: the CPUs of an actor, or 1.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Work on this Ray cluster: host:port, or auto.")
    ] = None,
    actors: Annotated[int, typer.Option(min=1, metavar="N", help="With --ray: the number of actors.")] = 2,
) -> None:
    """Run a program on each row of a file. A stopped job continues with the same command."""
    from delegate_ray.runtime import job as jobs  # not for the help

    settings = jobs.Settings(
        columns={name: _names(column) for name, column in _pairs("--column", columns).items()},
        results=_pairs("--result", results) or None,
        keep=tuple(keep or ()),
        method=method,
        on_bad=bad_rows,
        batch=batch_rows,
        threads=(threads or 1) if ray else threads,
        rows=rows,
        load=load.arguments(),
    )
    with ExitStack() as stack:
        if ray is not None:
            stack.enter_context(connect(ray))
        with output.working(f"reading {source}"):
            job = jobs.create(file, source, folder, settings)
        done = job.finished()
        finished = {f.number for f in done}
        left = [part for part in job.parts if part.number not in finished]
        if done:
            print(f"continuing: {len(done)} of {len(job.parts)} files are complete")
        if left:
            done += _run(job, left, sum(f.rows for f in done), actors if ray else 0)
        job.finish()
    bad = sum(f.bad for f in done)
    words = {"raise": "", "drop": f", {bad} bad rows left out", "column": f", {bad} bad rows"}[bad_rows]
    print(f"{job.rows} rows in {len(job.parts)} files in {folder}{words}")


def _run(job: Job, parts: list[Part], done: int, actors: int) -> list[Finished]:
    """Write the output files of some parts; `done` is the number of rows that are complete already."""
    from delegate_ray.runtime.job import write_manifest
    from delegate_ray.runtime.work import check_first_rows, work

    finished = []
    write_manifest(job)
    results: Iterable[Finished]
    if actors:
        from delegate_ray.runtime.cluster import Cluster

        results = Cluster(job, parts, actors, job.settings.threads or 1).work()
    else:
        runner = job.runner()
        check_first_rows(job, runner)
        results = (work(job, runner, part) for part in parts)
    with output.advancing("rows") as advance:
        for part in results:
            finished.append(part)
            done += part.rows
            advance(done, job.rows)
    return finished


def connect(address: str) -> ExitStack:
    """Connect to a Ray cluster; raises ConfigError if Ray is not installed."""
    try:
        from delegate_ray.runtime.connection import connected
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise ConfigError("--ray needs Ray, which is not installed", remedy="pip install 'delegate-ray[ray]'") from None
    stack = ExitStack()
    stack.enter_context(connected(address))
    return stack


def _pairs(option: str, items: list[str] | None) -> dict[str, str]:
    """Return the values of an option by name; raises ConfigError for one that is not NAME=VALUE, or given twice."""
    pairs: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{option} {item!r} is not NAME=COLUMN", remedy="write the name, =, and the column")
        if name in pairs:
            raise ConfigError(f"{option} has {name!r} twice", remedy="remove one of them")
        pairs[name] = value
    return pairs


def _names(text: str) -> str | tuple[str, ...]:
    return tuple(text.split(",")) if "," in text else text
