"""The console script: start the command line, or print how to install its requirements."""

from __future__ import annotations

import os
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
    if "llm" in sys.argv[1:]:  # cached attention has threads of its own; NumPy reads this when it is imported
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from delegate.cli.app import app

    _keep_stdout()
    app(prog_name="delegate")


def _keep_stdout() -> None:
    """Redirect the prints of vendors' libraries to stderr: other programs read stdout, which has only results."""
    if sys.stdout is None:  # closed by whoever started this
        from delegate.cli import output

        output.drop()
        return
    sys.stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    # Open as long as the process: closefd=False keeps Python from warning of that at its end.
    sys.stdout = open(descriptor, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
