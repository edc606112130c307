"""`delegate demo`: the digits example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

import delegate
from delegate.errors import ExportError

EXAMPLE = Path(delegate.__file__).parents[1] / "examples" / "digits" / "demo.py"


def demo() -> None:
    """Lower a trained digits classifier, save it, and run it in a process without torch."""
    if run() != 0:
        raise typer.Exit(1)


def run() -> int:
    """Run the example in a separate process and return its exit code. Raises ExportError if it is not installed."""
    if not EXAMPLE.is_file():
        raise ExportError(
            "the digits example is not part of an installed package",
            remedy="get the project's repository and run `python examples/digits/demo.py` there",
        )
    return subprocess.run([sys.executable, str(EXAMPLE)], check=False).returncode
