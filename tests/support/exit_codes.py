"""Exit codes of the commands."""

from __future__ import annotations

from typer.testing import CliRunner

from delegate.cli.app import app

DONE, FAILED, USAGE = 0, 1, 2


def require_exit(args: list[str], code: int, *, has_message: bool = True) -> None:
    """Fail if a command ends in another way; `has_message`: its failure is one line on stderr."""
    done = CliRunner().invoke(app, args)
    assert done.exit_code == code, done.output + repr(done.exception)
    assert isinstance(done.exception, SystemExit | None), "main() would end with a traceback"
    assert "Traceback" not in done.output
    if code == FAILED and has_message:
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
