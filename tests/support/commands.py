"""Calls of the command line in this process, and its exit codes."""

from __future__ import annotations

from typer.testing import CliRunner

from delegate.cli.app import app

DONE, FAILED, USAGE = 0, 1, 2


def call(*args: str, code: int = DONE) -> tuple[str, str]:
    """Run a command, assert its exit code, and return what it prints to stdout and to stderr."""
    done = CliRunner().invoke(app, args)
    assert done.exit_code == code, done.output + repr(done.exception)
    assert isinstance(done.exception, SystemExit | None), "main() would end with a traceback"
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def require_exit(args: list[str], code: int, *, has_message: bool = True) -> None:
    """Fail if a command ends in another way; `has_message`: its failure is one line on stderr."""
    _, stderr = call(*args, code=code)
    if code == FAILED and has_message:
        assert stderr.startswith("error: ")
        assert stderr.count("\n") == 1
