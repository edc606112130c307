"""The console script: starts the command line, or says how to install what it needs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line with the arguments of the process, and exit."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"error: the command line needs {error.name}: pip install 'delegate[cli]'", file=sys.stderr)
        raise SystemExit(1) from None
    from delegate.cli.app import app

    app(prog_name="delegate")
