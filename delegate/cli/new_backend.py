"""`delegate new-backend`: a package for a backend of one's own."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from delegate.cli import destinations
from delegate.errors import DelegateError
from delegate.registry import Registry

_NAMES = {"pyproject.toml.txt": "pyproject.toml", "delegate_acme": "delegate_{name}", "check_acme.py": "test_{name}.py"}


def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What users will write, e.g. acme.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", callback=destinations.PACKAGE, help="Where to. Default: delegate-NAME."
        ),
    ] = None,
) -> None:
    """Write an installable backend that passes the tests of every backend, to go on from."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise DelegateError(f"{name!r} is no name for a new backend", remedy="use small letters, digits and '_'")
    if name in Registry().names() or name == "portable":
        raise DelegateError(f"there is a backend {name!r} here", remedy="use another name")
    target = Path(_distribution(name)) if folder is None else folder
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DelegateError(f"{str(target)!r} is there already", remedy="give another folder by --output")
    _write(resources.files("delegate.skeleton"), target, name)
    print(f"wrote {target}")
    print("next: pip install 'setuptools>=77'")
    print(f"then: pip install --no-build-isolation --editable {target}, and `delegate check-backend {name}`")


def _write(source: Traversable, target: Path, name: str) -> None:
    """Write a folder of the skeleton."""
    target.mkdir(parents=True, exist_ok=True)
    for item in source.iterdir():
        if item.name in ("__pycache__", "py.typed") or (item.name == "__init__.py" and source.name == "skeleton"):
            continue
        place = target / _NAMES.get(item.name, item.name).format(name=name)
        if item.is_dir():
            _write(item, place, name)
        else:
            place.write_text(named(item.read_text(encoding="utf-8"), name), encoding="utf-8")


def _distribution(name: str) -> str:
    return f"delegate-{name.replace('_', '-')}"


def named(text: str, name: str) -> str:
    """Replace the names of the package, classes and the backend in a text of the skeleton."""
    title = "".join(part.capitalize() for part in name.split("_"))
    return text.replace("delegate-acme", _distribution(name)).replace("acme", name).replace("Acme", title)
