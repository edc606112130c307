"""`delegate new-backend`: write a package for a backend, from one of three templates."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import options, output
from delegate.errors import DelegateError
from delegate.registry import Registry


class Template(StrEnum):
    """The kinds of backends that `delegate new-backend` writes."""

    TABLE = "table"
    ASK = "ask"
    COMPILER = "compiler"


_NAMES = {"pyproject.toml.txt": "pyproject.toml", "delegate_acme": "delegate_{name}", "check_acme.py": "test_{name}.py"}


def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the backend, e.g. acme.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", callback=options.PACKAGE, help="Folder to write. Default: delegate-NAME."
        ),
    ] = None,
    template: Annotated[
        Template,
        typer.Option(
            help="table: a row per operator. ask: the library is queried about each node. "
            "compiler: Prims, compiled for each shape."
        ),
    ] = Template.TABLE,
) -> None:
    """Write an installable backend as a start; it passes the tests that every backend must pass."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise DelegateError(
            f"{name!r} is not a valid name for a backend", remedy="use lowercase letters, digits and '_'"
        )
    if name in Registry().names() or name == "portable":
        raise DelegateError(f"there is already a backend {name!r}", remedy="use another name")
    target = Path(_distribution(name)) if folder is None else folder
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DelegateError(f"{str(target)!r} already exists", remedy="give another folder with --output")
    skeleton = resources.files("delegate.skeleton")
    _write(skeleton, target, name)
    if template is not Template.TABLE:
        _write(skeleton / template, target / f"delegate_{name}", name)
    output.print_line(f"wrote {target}")
    output.print_line("next: pip install 'setuptools>=77'")
    output.print_line(
        f"then: pip install --no-build-isolation --editable {target}, and `delegate check-backend {name}`"
    )


def _write(source: Traversable, target: Path, name: str) -> None:
    """Write a folder of the skeleton, without the folders of other templates."""
    target.mkdir(parents=True, exist_ok=True)
    for item in source.iterdir():
        if item.name in ("__pycache__", "py.typed", *Template):
            continue
        if item.name == "__init__.py" and source.name != "delegate_acme":
            continue
        place = target / _NAMES.get(item.name, item.name).format(name=name)
        if item.is_dir():
            _write(item, place, name)
        else:
            place.write_text(replace_names(item.read_text(encoding="utf-8"), name), encoding="utf-8")


def _distribution(name: str) -> str:
    return f"delegate-{name.replace('_', '-')}"


def replace_names(text: str, name: str) -> str:
    """Replace the names of the package, classes and the backend in a text of the skeleton."""
    title = "".join(part.capitalize() for part in name.split("_"))
    text = re.sub(r"delegate\.skeleton\.(delegate_acme|ask|compiler)", "delegate_acme", text)
    return text.replace("delegate-acme", _distribution(name)).replace("acme", name).replace("Acme", title)
