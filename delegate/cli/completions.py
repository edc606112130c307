"""Completions of names on the command line: `delegate --install-completion` adds them to the shell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import typer

from delegate.errors import DelegateError
from delegate.plugins import BACKENDS, KERNELS, PORTABLE, discover


def backend_names(incomplete: str) -> list[str]:
    """Return the names of installed backends that begin with a text; no plugin is imported."""
    return _beginning([*discover(BACKENDS).claims, PORTABLE], incomplete)


def kernel_names(incomplete: str) -> list[str]:
    """Return the names of installed kernel libraries that begin with a text; no plugin is imported."""
    return _beginning(discover(KERNELS).claims, incomplete)


def method_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the methods of the program files that are already on the command line."""
    return _beginning(dict.fromkeys(_methods(context)), incomplete)


def _methods(context: typer.Context) -> Iterator[str]:
    from delegate.program import file  # which takes longer than all else

    for value in (*context.params.values(), *context.args):
        if isinstance(value, str | Path) and Path(value).suffix == ".dlg":
            try:
                yield from (method.name for method in file.load(Path(value)).methods)
            except DelegateError:
                continue


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
