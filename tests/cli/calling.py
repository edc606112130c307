"""Calls of the command line in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from delegate.cli.app import app


def call(*args: str, code: int = 0) -> tuple[str, str]:
    """Run a command, assert its exit code, and return what it prints to stdout and to stderr."""
    done = CliRunner().invoke(app, args)
    assert done.exit_code == code, done.output + repr(done.exception)
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr
