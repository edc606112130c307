"""`delegate explain`: the backend of each node of a model or a saved program, and the verdicts of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import output
from delegate.cli.lower import Backends, ConfigFile, Inputs
from delegate.cli.options import Imports, import_modules
from delegate.errors import DelegateError
from delegate.program import file
from delegate.program.source import MAGIC
from delegate.report import Report


def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help="A model as for `lower`, or a saved program.")],
    config: ConfigFile = None,
    backend: Backends = None,
    inputs: Inputs = None,
    imports: Imports = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Report the backend of each node and why others refuse it, without compiling; fail if `lower` would refuse."""
    if _is_program(Path(model)):
        if config or backend or inputs or imports:
            raise typer.BadParameter("a saved program has been planned already: -c, -b, -i and --import are for models")
        report, refusal = Report.from_json(file.load(model).report), None
    else:
        import_modules(imports)
        report, refusal = _plan(model, config, backend, inputs or [])
    if as_json:
        output.print_json_text(report.to_json())
    else:
        print(report)
    if refusal is not None:
        raise refusal


def _plan(
    model: str, config: Path | None, backends: list[str] | None, inputs: list[str]
) -> tuple[Report, DelegateError | None]:
    with output.working("importing torch"):
        from delegate import compile
        from delegate.cli.models import load_model
    with output.working(f"planning {model}"):
        return compile.plan_and_check(load_model(model, inputs), backends or None, config=config)


def _is_program(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC
