"""The commands `debug`, `diff`, `export-graph` and `ops`: what developers look into models and programs with.

`delegate --help` imports this module, so the commands import what they need.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from delegate.cli import options, output
from delegate.cli.options import Imports, LoweringOptions, PlanOptions, TrustCode, backend_names, method_names
from delegate.common.files import require_file, write_bytes
from delegate.errors import DelegateError, InputError
from delegate.plugins.user_modules import import_modules

_GRAPH = options.check_destination(require_file, "the graph", DelegateError)


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
    from delegate_devtools import debug as find_faults

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


def diff(
    before: Annotated[Path, typer.Argument(metavar="A.dlg", help="A program file.")],
    after: Annotated[Path, typer.Argument(metavar="B.dlg", help="Another program file.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--inputs", metavar="[NAME=]A.npy", help="Run both, and compare their results and times."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", autocompletion=method_names, help="Method to run, if the programs have several."),
    ] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Show the differences between two programs: placement, kernels, constants, memory, and with inputs the results."""
    from delegate.program import file
    from delegate_devtools.diff import compare_runs, differences

    found = differences(file.load(before), file.load(after))
    run = compare_runs((before, after), inputs, method, trust_code=trust_code) if inputs else None
    if as_json:
        sections = {name: [asdict(change) for change in changes] for name, changes in found.sections.items()}
        output.print_json({"differences": sections, "runs": {} if run is None else {run.method: run.to_json()}})
        return
    output.show(*found.lines(), *(() if run is None else run.lines()))


def export_graph(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help="A model as for `lower`, or a saved program.")],
    source: PlanOptions,
    out: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", callback=_GRAPH, help="File to write, and node data beside it."),
    ],
    format: Annotated[
        Literal["model-explorer", "dot", "onnx"] | None,
        typer.Option(
            case_sensitive=False,
            help="Of Google's Model Explorer, of Graphviz, or ONNX without weights, for Netron. Default: dot and onnx "
            "for files with these endings, else model-explorer.",
        ),
    ] = None,
) -> None:
    """Write the graph with backends and verdicts for another viewer."""
    options.require_distinct({"--output": out}, {"MODEL": Path(model)})
    from delegate.cli.report import read_report
    from delegate_devtools.export_graph import FORMATS, node_data

    report = read_report(model, source)
    ending = out.suffix.removeprefix(".").lower()
    chosen = format or (ending if ending in FORMATS else "model-explorer")
    files = {out: FORMATS[chosen](report, Path(model).name)}
    if chosen == "model-explorer":
        files |= {out.with_suffix(f".{kind}.json"): data for kind, data in node_data(report).items()}
    for path in files:
        require_file(path, "the graph")
    for path, data in files.items():
        write_bytes(path, data, "the graph")
        output.print_line(f"saved {path}, {len(data):,} bytes")


def ops(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An operator or a pattern: aten.add.Tensor, gelu, 'aten.conv*', '*'."),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", "-b", metavar="NAME", autocompletion=backend_names, help="List the operators of this backend."
        ),
    ] = None,
    modules: Imports = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all facts as JSON.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the support matrix of the documentation.")
    ] = False,
) -> None:
    """Show the kernels, the dtypes and the backends of operators; without a name or a backend, their numbers."""
    import_modules(modules)
    from delegate_devtools.ops import show_operators

    show_operators(name, backend or (), as_json=as_json, as_markdown=as_markdown)
