"""The console script: start the command line, or print how to install its requirements."""

from __future__ import annotations

import contextlib
import sys

from delegate.common import vendor_output


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
    _separate_streams()  # before the import of NumPy, which starts threads
    from delegate.cli.app import app

    try:
        app(prog_name="delegate")
    finally:  # a library may print at the end of the process
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stdout.flush()
        sys.stdout = sys.stderr


def _separate_streams() -> None:
    """Keep the prints of vendors' libraries out of stdout, and their noise out of stderr except with `--debug`."""
    if sys.stdout is None:  # closed by whoever started this
        from delegate.cli import output

        output.drop()
    elif sys.stderr is not None:
        vendor_output.separate()
        if "--debug" not in sys.argv:
            vendor_output.start()
