"""`delegate report`: programs as a page for a browser."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import delegate
from delegate.cli import options, output
from delegate.cli.inspect import is_program, plan_model
from delegate.cli.options import PlanOptions, TrustCode
from delegate.common.files import read_bytes
from delegate.errors import InputError
from delegate.plugins import load_developer_tool
from delegate.program import file
from delegate.program.memory_picture import memory_pictures
from delegate.report import Report
from delegate.report.page import page, write
from delegate.runtime.arguments import leaves, random_inputs
from delegate.runtime.profile import Profile


def report(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="MODEL|FILE", help="A model as for `lower`, or a saved program. Two are compared."),
    ],
    out: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", callback=options.REPORT, help="HTML file to write."),
    ],
    plan: PlanOptions,
    debug_result: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The output of `delegate debug --json` for this program: its faults are shown too."
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of timed runs of a saved program on random inputs.")
    ] = 0,
    inner: Annotated[
        bool, typer.Option("--inner", help="With --repeat: also the operators inside the vendor libraries.")
    ] = False,
    trust_code: TrustCode = False,
) -> None:
    """Write the graph, the placement, the memory and the time of a program as one page for a browser."""
    if len(sources) > 2:
        raise typer.BadParameter(f"{len(sources)} programs are given: one page shows one or two")
    if inner and not repeat:
        raise typer.BadParameter("--inner adds to --repeat: give both")
    if debug_result is not None and len(sources) > 1:
        raise typer.BadParameter("--debug-result is of one program: give one")
    read = {f"MODEL {s}": Path(s) for s in sources} | ({} if debug_result is None else {"--debug-result": debug_result})
    options.require_distinct({"--output": out}, read)
    diagnosis = None if debug_result is None else _diagnosis(debug_result)
    pages = []
    for source in sources:
        is_saved = is_program(Path(source))
        planning = PlanOptions() if is_saved and len(sources) > 1 else plan
        profile = _profile(source, repeat, inner, trust_code) if repeat and is_saved else None
        name = Path(source).name if is_saved else source
        pages.append(read_report(source, planning).page_data(name, profile, diagnosis))
    write(page(pages), out)
    output.print_line(f"saved {out}, {out.stat().st_size:,} bytes")


def read_report(source: str, plan: PlanOptions) -> Report:
    """Return the report of a saved program, or of a model's plan.

    Raises ProgramError for a program without debug info, and the errors of `explain`.
    """
    if is_program(Path(source)):
        if plan.config or plan.backend or plan.example_inputs:
            raise typer.BadParameter("a saved program is already planned: -c, -b and -i are for models")
        program = file.load(source)
        return replace(Report.from_json(program.report, source), memory=memory_pictures(program))
    planned, refusal = plan_model(source, plan)
    return replace(planned, notes=(*planned.notes, *([f"lowering fails: {refusal}"] if refusal else [])))


def _diagnosis(path: Path) -> Any:
    """Return the diagnosis of a file.

    Raises InputError if it cannot be read, and ConfigError if the package delegate-devtools is not installed.
    """
    kind = load_developer_tool("diagnosis", "--debug-result")
    try:
        return kind.from_json(read_bytes(path).decode(), str(path))
    except (OSError, ValueError) as error:
        what = f"the debug result cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(what, where=str(path), remedy="write one: `delegate debug MODEL --json`") from error


def _profile(source: str, repeat: int, inner: bool, trust_code: bool) -> Profile:
    """Return the profile of calls to every method of a program on random inputs."""
    with ExitStack() as stack:
        with output.working(f"loading {source}"):
            program = stack.enter_context(delegate.load(source, trust_code=trust_code))
        profile = stack.enter_context(program.profile(inner=inner))
        for name in program.methods:
            method = program.method(name)
            arguments = leaves(method.inputs, random_inputs(method.definition))
            for _ in output.count_with_bar(repeat, f"running {name}"):
                method.run(arguments)
    return profile
