"""The application: its commands, and the reporting of their errors."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

import delegate
from delegate.cli import (
    backends,
    cache,
    check_backend,
    checks,
    commands,
    debug,
    diff,
    export_graph,
    inspect,
    llm,
    lower,
    measure,
    new_backend,
    ops,
    output,
    plugin_commands,
    report,
    run,
    strip,
)
from delegate.cli.demo import command as demo
from delegate.errors import ConfigError, DelegateError

_AOT_LIBRARIES = frozenset({"torch", "pydantic", "yaml"})


class Commands(commands.Group):
    """Commands whose errors are one line on stderr and exit code 1; `--debug`, anywhere, shows the traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with output.escaped():
            return super().main(*args, **kwargs)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of this project's commands, then of those of other packages."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in plugin_commands.names() if name not in own)]

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return a command by name; those of other packages are imported now."""
        return super().get_command(ctx, name) or plugin_commands.find(name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--debug" in args:
            args = ["--debug", *(a for a in args if a != "--debug")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = output.show_warning
            try:
                result = super().invoke(ctx)
                sys.stdout.flush()  # a full disk is an error of the command, not of the interpreter's end
                return result
            except (typer.Exit, typer.Abort):
                raise
            except Exception as error:
                if hasattr(error, "show"):  # the help, if no command is given
                    raise
                if isinstance(error, OSError):
                    output.drop()
                if isinstance(error, BrokenPipeError):  # the reader of our output has gone
                    raise typer.Exit(1) from None
                if ctx.params.get("debug"):
                    print(traceback.format_exc().rstrip(), file=sys.stderr)
                for message in _messages(error):
                    output.error(message)
                raise typer.Exit(1) from None


def _messages(error: Exception) -> list[str]:
    """Return the messages about an error; a configuration may have several."""
    return str(error).splitlines() if isinstance(error, ConfigError) else [_message(error)]


def _message(error: Exception) -> str:
    if isinstance(error, DelegateError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _AOT_LIBRARIES:
        return f"this command needs {error.name}, which is not installed: pip install 'delegate[aot]'"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}: `--debug` shows the traceback"


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(show: bool) -> None:
    if show:
        print(f"delegate {delegate.__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, and verify the program after each pass.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run an exported PyTorch model on several backends, from one file."""
    if debug:
        os.environ["DELEGATE_VERIFY_PASSES"] = "1"


_COMMANDS: dict[str, Callable[..., None]] = {
    "backends": backends.backends,
    "lower": lower.lower,
    "explain": inspect.explain,
    "run": run.run,
    "inspect": inspect.inspect,
    "report": report.report,
    "export-graph": export_graph.export_graph,
    "diff": diff.diff,
    "debug": debug.debug,
    "strip": strip.strip,
    "ops": ops.ops,
    "measure": measure.measure,
    "new-backend": new_backend.new_backend,
    "check-backend": check_backend.check_backend,
    "demo": demo.demo,
}
for _name, _function in _COMMANDS.items():
    app.command(_name, cls=commands.Command)(_function)
app.add_typer(llm.app, name="llm")
app.add_typer(checks.config_app, name="config")
app.add_typer(checks.lock_app, name="lock")
app.add_typer(cache.app, name="cache")
