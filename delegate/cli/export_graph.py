"""`delegate export-graph`: the graph of a program for other viewers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from delegate.cli import options, output
from delegate.cli.model_options import PlanOptions
from delegate.cli.report import read_report
from delegate.common.files import require_file, write_bytes
from delegate.devtools.export_graph import dot, model_explorer, node_data, onnx_model

_FORMATS = {"model-explorer": model_explorer, "dot": dot, "onnx": onnx_model}


def export_graph(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help="A model as for `lower`, or a saved program.")],
    source: PlanOptions,
    out: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", callback=options.GRAPH, help="File to write. Node data goes beside it."
        ),
    ],
    format: Annotated[
        Literal["model-explorer", "dot", "onnx"],
        typer.Option(
            case_sensitive=False, help="Of Google's Model Explorer, of Graphviz, or ONNX without weights, for Netron."
        ),
    ] = "model-explorer",
) -> None:
    """Write the graph with backends and verdicts for another viewer."""
    options.require_distinct({"--output": out}, {"MODEL": Path(model)})
    report = read_report(model, source)
    files = {out: _FORMATS[format](report, Path(model).name)}
    if format == "model-explorer":
        files |= {out.with_suffix(f".{kind}.json"): data for kind, data in node_data(report).items()}
    for path in files:
        require_file(path, "the graph")
    for path, data in files.items():
        write_bytes(path, data, "the graph")
        output.print_line(f"saved {path}, {len(data):,} bytes")
