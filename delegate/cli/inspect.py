"""`delegate inspect`, `explain` and `strip`: the contents of a program file, and the backend of each node.

Nothing is compiled or run, and a program file needs no backend.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from delegate.cli import options, output
from delegate.cli.options import PlanOptions
from delegate.common.files import open_to_read
from delegate.errors import DelegateError
from delegate.program import file
from delegate.program.expr import Dim
from delegate.program.instructions import strip_debug_info
from delegate.program.model import FORMAT_VERSION, MethodDefinition, Program
from delegate.program.source import MAGIC
from delegate.program.text import constant_bytes, debug_bytes, program_lines
from delegate.report import Report


def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A program file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, without the instructions.")] = False,
) -> None:
    """Show methods, values, instructions, memory, delegates and constants of a program file."""
    program = file.load(path)
    if as_json:
        output.print_json(_summary(program))
        return
    output.show(*program_lines(program))


def _summary(program: Program) -> dict[str, Any]:
    spaces = ["host", *(f"{s.backend}:{s.name}" for s in program.spaces)]
    return {
        "version": FORMAT_VERSION,
        "debug_bytes": debug_bytes(program),
        "methods": [_method(m, spaces) for m in program.methods],
        "operators": list(program.operators),
        "delegates": _delegates(program),
        "on_fallback": program.on_fallback,
        "constants": [_tensor(c.name, c.dtype.name, c.shape) for c in program.constants],
        "states": [_tensor(s.name, s.dtype.name, s.shape) for s in program.states],
        "segment_bytes": sum(len(s) for s in program.segments),
    }


def _delegates(program: Program) -> list[dict[str, Any]]:
    fallbacks = [{"bytes": constant_bytes(program, method)} for method in program.fallbacks]
    return [
        {
            "name": spec.name,
            "backend": spec.backend,
            "bytes": len(program.segments[spec.segment]),
            "fallback": fallbacks[spec.fallback] if spec.fallback >= 0 else None,
        }
        for spec in program.delegates
    ]


def _method(method: MethodDefinition, spaces: list[str]) -> dict[str, Any]:
    tensors = [(i.name, method.values[i.value]) for i in method.inputs if i.value >= 0]
    return {
        "name": method.name,
        "inputs": [_tensor(name, value.dtype.name, value.shape) for name, value in tensors],
        "instructions": len(method.instructions),
        "values": len(method.values),
        "arenas": list(method.arenas),
        "memory": dict(zip(spaces, method.arenas, strict=False)),
        "symbols": [{"name": s.name, "minimum": s.minimum, "maximum": s.maximum} for s in method.symbols],
    }


def _tensor(name: str, dtype: str, shape: tuple[Dim, ...]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": [d if isinstance(d, int) else str(d) for d in shape]}


def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help="A model as for `lower`, or a saved program.")],
    source: PlanOptions,
    nodes: Annotated[bool, typer.Option("--nodes", help="Show a table of all nodes in place of the report.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Report the backend of each node, and why others reject it.

    Nothing is compiled, but the command fails if `lower` would fail.
    """
    if is_program(Path(model)):
        if source.is_given:
            raise typer.BadParameter("a saved program is already planned: -c, -b, -i and --import are for models")
        report, refusal = Report.from_json(file.load(model).report, str(model)), None
    else:
        report, refusal = plan_model(model, source)
    if as_json:
        output.print_json(json.loads(report.to_json()))
    elif nodes:
        output.show(report.nodes_table())
    else:
        output.show(*report.blocks())
    if refusal is not None:
        raise refusal


def plan_model(model: str, source: PlanOptions) -> tuple[Report, DelegateError | None]:
    """Return the report of a model's plan, and the error of `lower` if it would fail."""
    exported = source.load_model(model)
    from delegate import compile

    with output.working(f"planning {model}"):
        return compile.plan_and_check(exported, source.backends, config=source.config)


def is_program(path: Path) -> bool:
    """Return true for the name or the first bytes of a saved program. For a name alone the loader raises the error."""
    if path.suffix.lower() == ".dlg" or not os.path.isfile(path):
        return path.suffix.lower() == ".dlg"
    with open_to_read(path) as opened:
        return opened.read(len(MAGIC)) == MAGIC


def strip(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A program file.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", callback=options.PROGRAM, help="File to write. Default: FILE is replaced."
        ),
    ] = None,
) -> None:
    """Remove the report, the module paths and the source lines of a program file. It computes the same."""
    target = out or path
    program = file.load(path)
    before = path.stat().st_size
    file.save(strip_debug_info(program), target)
    output.print_line(f"saved {target}, {target.stat().st_size:,} bytes instead of {before:,}")
